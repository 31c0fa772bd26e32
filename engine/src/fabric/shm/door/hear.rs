//! What happens at the door without the embedder: connections come, frames arrive, peers die, time is up.
//!
//! ```text
//!  epoll ─► listener: accept ─► who is it? ─► Greeting
//!        ─► link: one frame ─► parse ─► as many descriptors as it says? ─► rule(phase, kind) ─► do it
//!  timer ─► Calling: try again;   others: the peer is late
//! ```
//! One frame of a connection a pass, so that none keeps the others waiting. Imported by mod.

use super::calls::{say, say_end};
use super::ends::{CmNews, DoorEvent, GrantedRegion, PeerEnd};
use super::frames::{EndWords, Frame, FrameError, GrantWords, Reason};
use super::link::{ASKS_MAX, Ending, Link, Phase, Rule, ended, rule, take_ask};
use super::{BELL, Door, TIMER};
use crate::fabric::{CmEventKind, PrivateData};
use crate::sys::bell::Ringer;
use crate::sys::closing::Foreign;
use crate::sys::epoll::Events;
use crate::sys::memfd::SharedMap;
use crate::sys::seqpacket::{Received, Seqpacket};
use crate::types::Rkey;
use std::io;
use std::time::{Duration, Instant};

/// Room for a frame of a later version, which may be longer: it shall be told from nonsense.
const RECV_BYTES: usize = 256;
/// How often a listener that is too busy is tried again.
const CALL_INTERVAL: Duration = Duration::from_millis(5);
/// How long a listener rests when the process is out of descriptors.
const REST: Duration = Duration::from_millis(100);

impl Door {
    /// One pass over what is ready. False if there was nothing.
    pub(super) fn look(&mut self, frames: &mut usize) -> io::Result<bool> {
        let mut any = false;
        let now = Instant::now();
        while *frames > 0
            && let Some(key) = self.alarms.due(now)
        {
            *frames -= 1;
            any = true;
            self.alarm(key, now);
        }
        let mut ready = Events::new();
        let tokens = self.epoll.wait(Some(Duration::ZERO), &mut ready)?;
        for key in tokens.filter(|token| ![TIMER, BELL].contains(token)) {
            if *frames == 0 {
                break;
            }
            *frames -= 1;
            any |= self.welcome(key) || self.hear(key);
        }
        Ok(any)
    }

    /// Time is up for a listener's rest, a call, or the peer.
    fn alarm(&mut self, key: u64, now: Instant) {
        if let Some(listener) = self.listeners.get(&key) {
            if self.epoll.add(&listener.socket, key).is_err() {
                self.alarms.set(key, now.checked_add(REST));
            }
            return;
        }
        let Some(link) = self.links.get(&key) else {
            return;
        };
        if link.phase == Phase::Calling && link.deadline.is_some_and(|deadline| now < deadline) {
            self.call(key);
        } else {
            self.end(key, Ending::Late);
        }
    }

    /// Tries to reach the listener of an active end.
    pub(super) fn call(&mut self, key: u64) {
        let Some(name) = self.peer(key) else {
            return;
        };
        let (mut busy, mut failure) = (false, None);
        for dir in self.places.to_dial(&self.settings.uids) {
            match Seqpacket::connect(&dir.socket_path(&name)) {
                Ok(socket) => {
                    if let Err(error) = self.request(key, socket) {
                        self.close(key, Phase::Over);
                        self.tell_end(key, CmEventKind::ConnectError, status_of(&error));
                    }
                    return;
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::ENOENT | libc::ECONNREFUSED) => {}
                    Some(libc::EAGAIN) => busy = true,
                    _ => failure = Some(error),
                },
            }
        }
        if busy {
            let deadline = self.links.get(&key).and_then(|link| link.deadline);
            let next = Instant::now().checked_add(CALL_INTERVAL);
            self.alarms.set(key, next.min(deadline).or(next));
            return;
        }
        self.close(key, Phase::Over);
        match failure {
            Some(error) => self.tell_end(key, CmEventKind::ConnectError, status_of(&error)),
            None => {
                let status = Reason::NobodyListens.status();
                self.tell_end(key, CmEventKind::Rejected, status);
            }
        }
    }

    /// The listener is there: says what this end is.
    fn request(&mut self, key: u64, socket: Seqpacket) -> io::Result<()> {
        if !self.settings.uids.contains(&socket.peer()?.uid) {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        let link = self.links.get_mut(&key).ok_or_else(super::wrong_state)?;
        let (offer, params) = *link.call.take().ok_or_else(super::wrong_state)?;
        say_end(&socket, Frame::Request, &offer, &params, key)?;
        self.epoll.add(&socket, key)?;
        link.inbox = Some(offer.inbox);
        link.socket = Some(socket);
        link.phase = Phase::Asking;
        self.alarms.set(key, link.deadline);
        Ok(())
    }

    /// Takes a connection that waits at a listener. False if the key is no listener's, or none waits.
    fn welcome(&mut self, key: u64) -> bool {
        let Some(listener) = self.listeners.get(&key) else {
            return false;
        };
        let socket = match listener.socket.accept() {
            Ok(Some(socket)) => socket,
            Ok(None) => return false,
            // Out of descriptors, mostly. The connection stays where it is meanwhile.
            Err(_) => {
                let _ = self.epoll.remove(&listener.socket);
                self.alarms.set(key, Instant::now().checked_add(REST));
                return true;
            }
        };
        // Strangers are hung up on without a word.
        let Ok(peer) = socket.peer() else {
            return true;
        };
        if !self.settings.uids.contains(&peer.uid) {
            return true;
        }
        let mut link = Link::new(Phase::Greeting, listener.name.clone(), peer.pid.to_string());
        let passive = self.number();
        if self.epoll.add(&socket, passive).is_err() {
            return true;
        }
        link.socket = Some(socket);
        link.listener = Some(key);
        link.deadline = self.deadline();
        self.alarms.set(passive, link.deadline);
        self.links.insert(passive, link);
        let pushed = self
            .listeners
            .get_mut(&key)
            .and_then(|listener| listener.greets(passive));
        if let Some(oldest) = pushed {
            self.forget(oldest);
        }
        true
    }

    /// Takes one frame of a connection. False if there is none.
    fn hear(&mut self, key: u64) -> bool {
        let Some(socket) = self.links.get(&key).and_then(|link| link.socket.as_ref()) else {
            return false;
        };
        let mut bytes = [0; RECV_BYTES];
        match socket.recv(&mut bytes) {
            Ok(Received::Nothing) => return false,
            Ok(Received::Frame { len, fds }) => self.frame(key, &bytes[..len], fds),
            Ok(Received::Cut) => self.broken(key, Reason::Unsupported),
            Ok(Received::Closed) | Err(_) => self.end(key, Ending::Gone),
        }
        true
    }

    fn frame(&mut self, key: u64, bytes: &[u8], fds: Vec<Foreign>) {
        let Some(phase) = self.links.get(&key).map(|link| link.phase) else {
            return;
        };
        let frame = match Frame::parse(bytes) {
            Ok(frame) if frame.fds() == fds.len() => frame,
            Err(FrameError::Version) => return self.broken(key, Reason::Version),
            Ok(_) | Err(FrameError::Malformed) => return self.broken(key, Reason::Unsupported),
        };
        let done = match (rule(phase, frame.kind()), frame) {
            (Rule::Admit, Frame::Request(end)) => self.admit(key, &end, fds),
            (Rule::Map, Frame::Accept(end)) => self.map(key, &end, fds),
            (Rule::Seal, _) => self.seal(key, &Frame::Sealed, Phase::Sealed),
            (Rule::Respond, _) => self.respond(key),
            (Rule::Establish, _) => self.establish(key),
            (Rule::Refused, Frame::Reject(reason, data)) => {
                self.refused(key, reason, data);
                Ok(())
            }
            (Rule::Parted, _) => {
                self.parted(key);
                Ok(())
            }
            (Rule::Ask, Frame::Ask(rkey)) => self.asked(key, rkey),
            (Rule::Granted, Frame::Grant(rkey, grant)) => self.granted(key, rkey, grant, fds),
            (Rule::Ignore, _) => Ok(()),
            (Rule::Gone, _) => {
                self.end(key, Ending::Gone);
                Ok(())
            }
            _ => Err(Ending::Broken),
        };
        match done {
            Ok(()) => {}
            Err(Ending::Broken) => self.broken(key, Reason::Unsupported),
            Err(why) => self.end(key, why),
        }
    }

    /// A request: maps what it brings, and tells the embedder.
    fn admit(&mut self, key: u64, end: &EndWords, fds: Vec<Foreign>) -> Result<(), Ending> {
        let peer = take_end(end, fds).map_err(|_| Ending::Broken)?;
        let link = self.links.get_mut(&key).ok_or(Ending::Broken)?;
        let at = link.listener.ok_or(Ending::Broken)?;
        let listener = self.listeners.get_mut(&at).ok_or(Ending::Broken)?;
        if listener.asked.len() >= listener.backlog {
            let full = Frame::Reject(Reason::Consumer, PrivateData::EMPTY);
            let _ = say(link.socket.as_ref(), &full);
            self.forget(key);
            return Ok(());
        }
        listener.greeted(key);
        listener.asked.insert(key);
        link.phase = Phase::Asked;
        link.remote = format!("{}.{}", link.remote, end.id);
        link.deadline = None;
        self.alarms.set(key, None);
        let mut news = CmNews::new(at, CmEventKind::ConnectRequest, 0).with_params(&peer.params);
        news.request = Some(key);
        link.peer = Some(Box::new(peer));
        self.raise(DoorEvent::Cm(news));
        Ok(())
    }

    /// An answer: maps what it brings. Our inbox is sealed before the peer may write it, and the peer is
    /// told, so that it seals its own.
    fn map(&mut self, key: u64, end: &EndWords, fds: Vec<Foreign>) -> Result<(), Ending> {
        let peer = take_end(end, fds).map_err(|_| Ending::Broken)?;
        if let Some(link) = self.links.get_mut(&key) {
            link.peer = Some(Box::new(peer));
        }
        self.seal(key, &Frame::Mapped, Phase::Mapping)
    }

    /// The peer has mapped our inbox: nobody else will for writing, and the peer cannot take pages out of it.
    fn seal(&mut self, key: u64, then: &Frame, next: Phase) -> Result<(), Ending> {
        let link = self.links.get_mut(&key).ok_or(Ending::Broken)?;
        let inbox = link.inbox.take().ok_or(Ending::Broken)?;
        inbox.seal_writes().map_err(|_| Ending::Broken)?;
        // A peer that is gone may have said why: that is read next.
        let _ = say(link.socket.as_ref(), then);
        link.phase = next;
        Ok(())
    }

    fn respond(&mut self, key: u64) -> Result<(), Ending> {
        let link = self.links.get_mut(&key).ok_or(Ending::Broken)?;
        let peer = link.peer.take().ok_or(Ending::Broken)?;
        link.phase = Phase::Answered;
        link.deadline = None;
        self.alarms.set(key, None);
        let mut news = CmNews::new(key, CmEventKind::ConnectResponse, 0).with_params(&peer.params);
        news.peer = Some(peer);
        self.raise(DoorEvent::Cm(news));
        Ok(())
    }

    fn establish(&mut self, key: u64) -> Result<(), Ending> {
        let link = self.links.get_mut(&key).ok_or(Ending::Broken)?;
        let peer = link.peer.take().ok_or(Ending::Broken)?;
        link.phase = Phase::Up;
        link.deadline = None;
        self.alarms.set(key, None);
        self.raise(DoorEvent::Ready { key, peer });
        self.tell_end(key, CmEventKind::Established, 0);
        Ok(())
    }

    fn refused(&mut self, key: u64, reason: Reason, data: PrivateData) {
        self.close(key, Phase::Over);
        let mut news = CmNews::new(key, CmEventKind::Rejected, reason.status());
        news.private_data = data;
        self.raise(DoorEvent::Cm(news));
    }

    /// The peer leaves, before us or after.
    fn parted(&mut self, key: u64) {
        let Some(link) = self.links.get_mut(&key) else {
            return;
        };
        if link.phase == Phase::Up {
            // The socket stays, for our answer.
            link.clear();
            link.phase = Phase::Left;
            self.alarms.set(key, None);
        } else {
            self.close(key, Phase::Over);
        }
        self.tell_end(key, CmEventKind::Disconnected, 0);
    }

    fn asked(&mut self, key: u64, rkey: Rkey) -> Result<(), Ending> {
        let link = self.links.get_mut(&key).ok_or(Ending::Broken)?;
        if link.asked.len() >= ASKS_MAX {
            return Err(Ending::Broken);
        }
        link.asked.push_back(rkey);
        self.raise(DoorEvent::RegionAsked { key, rkey });
        Ok(())
    }

    fn granted(
        &mut self,
        key: u64,
        rkey: Rkey,
        grant: Option<GrantWords>,
        fds: Vec<Foreign>,
    ) -> Result<(), Ending> {
        let deadline = self.deadline();
        let link = self.links.get_mut(&key).ok_or(Ending::Broken)?;
        if !take_ask(&mut link.asking, rkey) {
            return Err(Ending::Broken);
        }
        let more = !link.asking.is_empty();
        self.alarms.set(key, deadline.filter(|_| more));
        let grant = match grant {
            None => None,
            Some(words) => Some(take_region(&words, fds).map_err(|_| Ending::Broken)?),
        };
        self.raise(DoorEvent::RegionAnswer { key, rkey, grant });
        Ok(())
    }

    /// The peer breaks the rules. One that is still shaking hands is told why, if it was merely another
    /// version; then nothing of it is heard any more.
    fn broken(&mut self, key: u64, reason: Reason) {
        if let Some(link) = self.links.get(&key)
            && matches!(link.phase, Phase::Greeting | Phase::Asking)
        {
            let reject = Frame::Reject(reason, PrivateData::EMPTY);
            let _ = say(link.socket.as_ref(), &reject);
        }
        self.end(key, Ending::Broken);
    }

    /// The connection ends without a word of the peer.
    pub(super) fn end(&mut self, key: u64, why: Ending) {
        let Some(phase) = self.links.get(&key).map(|link| link.phase) else {
            return;
        };
        if phase == Phase::Greeting {
            return self.forget(key);
        }
        let (next, told) = ended(phase, why);
        self.close(key, next);
        if let Some((kind, status)) = told {
            self.tell_end(key, kind, status);
        }
    }

    /// Lets go of the socket and of all that the peer sent.
    pub(super) fn close(&mut self, key: u64, next: Phase) {
        self.alarms.set(key, None);
        let Some(link) = self.links.get_mut(&key) else {
            return;
        };
        link.phase = next;
        link.clear();
        if let Some(socket) = link.socket.take() {
            let _ = self.epoll.remove(&socket);
        }
    }

    /// Forgets a connection.
    pub(super) fn forget(&mut self, key: u64) {
        self.close(key, Phase::Over);
        let listener = self.links.remove(&key).and_then(|link| link.listener);
        if let Some(listener) = listener.and_then(|at| self.listeners.get_mut(&at)) {
            listener.greeted(key);
        }
    }

    fn tell_end(&mut self, key: u64, kind: CmEventKind, status: i32) {
        self.raise(DoorEvent::Cm(CmNews::new(key, kind, status)));
    }
}

/// Maps what an end brought. There are as many descriptors as it says.
fn take_end(end: &EndWords, fds: Vec<Foreign>) -> io::Result<PeerEnd> {
    let mut fds = fds.into_iter();
    let mut next = || fds.next().ok_or_else(super::wrong_state);
    let inbox = SharedMap::of(next()?, end.geometry.bytes(), true)?;
    let board = SharedMap::of(next()?, end.board_bytes, false)?;
    let bell = if end.bell {
        Some(Ringer::of(next()?)?)
    } else {
        None
    };
    Ok(PeerEnd {
        qp: end.qp,
        access: end.access,
        geometry: end.geometry,
        inbox,
        board,
        bell,
        params: end.params,
    })
}

fn take_region(words: &GrantWords, fds: Vec<Foreign>) -> io::Result<GrantedRegion> {
    let fd = fds.into_iter().next().ok_or_else(super::wrong_state)?;
    Ok(GrantedRegion {
        map: SharedMap::of(fd, words.map_bytes, words.access.is_remote_writable())?,
        base: words.base,
        len: words.len,
        access: words.access,
    })
}

/// As the status of an event.
fn status_of(error: &io::Error) -> i32 {
    error
        .raw_os_error()
        .map_or(-libc::EIO, |errno| errno.saturating_neg())
}
