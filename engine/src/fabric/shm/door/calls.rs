//! What the embedder does at the door. Each call is a step of `Fabric`, with the events that it promises.
//!
//! A call that fails has changed nothing, or an event says what became of the connection. Imported by mod.

use super::dir::check_name;
use super::ends::{CmNews, DoorEvent, Grant, Offer};
use super::frames::{EndWords, Frame, GrantWords, Reason, can_be_said};
use super::link::{ASKS_MAX, Ending, Link, Phase, take_ask};
use super::listener::Listener;
use super::{Door, peer_gone, wrong_state};
use crate::fabric::{CmEventKind, ConnParams, PrivateData};
use crate::sys::seqpacket::Seqpacket;
use crate::types::Rkey;
use std::io;
use std::os::fd::AsFd;

/// Who may connect to a socket, by its mode: root and its owner, or everybody whom credentials let in.
const MODE_OWN: u32 = 0o600;
const MODE_ALL: u32 = 0o666;
/// Bytes of frames that a peer may leave unread before it is granted no region. One that asks for as many
/// regions as it may, and is asked as much, has half of it.
const UNREAD_MAX: usize = 48 << 10;

impl Door {
    /// Listens at a name: `ConnectRequest` events name the key that is returned.
    ///
    /// # Errors
    /// `EADDRINUSE`: somebody listens there. It is no name, or the directory is not to be trusted.
    pub(in crate::fabric::shm) fn listen(&mut self, name: &str, backlog: u32) -> io::Result<u64> {
        check_name(name)?;
        let own = rustix::process::geteuid().as_raw();
        let open = self.settings.uids.iter().any(|uid| ![own, 0].contains(uid));
        let mode = if open { MODE_ALL } else { MODE_OWN };
        let listener = Listener::open(self.places.to_listen()?, name, backlog, mode)?;
        let key = self.number();
        self.epoll.add(&listener.socket, key)?;
        self.listeners.insert(key, listener);
        Ok(key)
    }

    /// Begins an active connection: `AddrResolved` follows. Whether somebody listens shows at
    /// [`connect`](Self::connect).
    ///
    /// # Errors
    /// It is no name.
    pub(in crate::fabric::shm) fn dial(&mut self, name: &str) -> io::Result<u64> {
        check_name(name)?;
        let key = self.number();
        let local = format!("{}.{key}", std::process::id());
        let link = Link::new(Phase::Addressed, local, name.into());
        self.links.insert(key, link);
        self.tell(key, CmEventKind::AddrResolved, 0)?;
        Ok(key)
    }

    /// Second step of an active connection: `RouteResolved` follows.
    ///
    /// # Errors
    /// The end is in no state for it.
    pub(in crate::fabric::shm) fn route(&mut self, key: u64) -> io::Result<()> {
        self.link_in(key, Phase::Addressed)?.phase = Phase::Routed;
        self.tell(key, CmEventKind::RouteResolved, 0)
    }

    /// Sends the request. `ConnectResponse` follows, which brings the peer, or `Rejected`, `ConnectError`
    /// or `Unreachable`.
    ///
    /// # Errors
    /// The end is in no state for it, or what is offered cannot be.
    pub(in crate::fabric::shm) fn connect(
        &mut self,
        key: u64,
        offer: Offer,
        params: &ConnParams,
    ) -> io::Result<()> {
        check_offer(&offer, params)?;
        let deadline = self.deadline();
        let link = self.link_in(key, Phase::Routed)?;
        link.phase = Phase::Calling;
        link.deadline = deadline;
        link.call = Some(Box::new((offer, *params)));
        self.call(key);
        self.settle()
    }

    /// Answers `ConnectResponse`: the connection stands, and the passive end hears of it.
    ///
    /// # Errors
    /// The end is in no state for it, or the peer has gone.
    pub(in crate::fabric::shm) fn confirm(&mut self, key: u64) -> io::Result<()> {
        let link = self.link_in(key, Phase::Answered)?;
        say(link.socket.as_ref(), &Frame::Confirm)?;
        link.phase = Phase::Up;
        Ok(())
    }

    /// Accepts a request: `Ready` and `Established` follow, or `Rejected`, `ConnectError` or `Unreachable`.
    ///
    /// # Errors
    /// The end is in no state for it, the peer has gone, or what is offered cannot be.
    pub(in crate::fabric::shm) fn accept(
        &mut self,
        key: u64,
        offer: Offer,
        params: &ConnParams,
    ) -> io::Result<()> {
        check_offer(&offer, params)?;
        let deadline = self.deadline();
        let link = self.links.get_mut(&key).ok_or_else(wrong_state)?;
        match link.phase {
            Phase::Asked => {}
            Phase::Lost => return Err(peer_gone()),
            _ => return Err(wrong_state()),
        }
        let socket = link.socket.as_ref().ok_or_else(peer_gone)?;
        say_end(socket, Frame::Accept, &offer, params, 0)?;
        link.inbox = Some(offer.inbox);
        link.phase = Phase::Accepted;
        link.deadline = deadline;
        self.alarms.set(key, deadline);
        self.answered(key);
        self.settle()
    }

    /// Rejects a request.
    ///
    /// # Errors
    /// The end is in no state for it.
    pub(in crate::fabric::shm) fn reject(
        &mut self,
        key: u64,
        data: &PrivateData,
    ) -> io::Result<()> {
        let link = self.links.get_mut(&key).ok_or_else(wrong_state)?;
        match link.phase {
            Phase::Asked => {
                // A peer that is gone needs no answer.
                let _ = say(
                    link.socket.as_ref(),
                    &Frame::Reject(Reason::Consumer, *data),
                );
            }
            Phase::Lost => {}
            _ => return Err(wrong_state()),
        }
        self.answered(key);
        self.close(key, Phase::Over);
        self.settle()
    }

    /// Tells the peer that the connection ends. `Disconnected` follows when the peer has answered, or has
    /// not for too long; where the peer was first, there is nothing more to follow.
    ///
    /// # Errors
    /// It is not up, or over already.
    pub(in crate::fabric::shm) fn disconnect(&mut self, key: u64) -> io::Result<()> {
        let deadline = self.deadline();
        let link = self.links.get_mut(&key).ok_or_else(wrong_state)?;
        let said = match link.phase {
            Phase::Up | Phase::Left => say(link.socket.as_ref(), &Frame::Disconnect),
            _ => return Err(wrong_state()),
        };
        if link.phase == Phase::Left {
            self.close(key, Phase::Over);
            return self.settle();
        }
        link.clear();
        link.phase = Phase::Leaving;
        link.deadline = deadline;
        self.alarms.set(key, deadline);
        if said.is_err() {
            self.end(key, Ending::Gone);
        }
        self.settle()
    }

    /// Destroys an end or a listener: no event names it afterwards. Its peer hears what it would of a QP that
    /// is destroyed; requests that nobody took are rejected.
    pub(in crate::fabric::shm) fn destroy(&mut self, key: u64) {
        let mut doomed = vec![key];
        while let Some(key) = doomed.pop() {
            if let Some(listener) = self.listeners.remove(&key) {
                let _ = self.epoll.remove(&listener.socket);
                self.alarms.set(key, None);
                doomed.extend(listener.greeting());
            } else {
                self.drop_link(key);
            }
            self.events.retain(|event| {
                if event.key() != key {
                    return true;
                }
                if let DoorEvent::Cm(CmNews {
                    request: Some(request),
                    ..
                }) = event
                {
                    doomed.push(*request);
                }
                false
            });
        }
        // What may fail here is told by the next call of `next`.
        let _ = self.settle();
    }

    /// Asks the peer for the region of a key: `RegionAnswer` follows, unless the connection ends, as it does
    /// when the peer does not answer in time.
    ///
    /// # Errors
    /// The connection does not stand, or `WouldBlock`: sixteen questions are open.
    pub(in crate::fabric::shm) fn ask_region(&mut self, key: u64, rkey: Rkey) -> io::Result<()> {
        let deadline = self.deadline();
        let link = self.link_in(key, Phase::Up)?;
        if link.asking.len() >= ASKS_MAX {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        link.asking.push_back(rkey);
        let first = link.asking.len() == 1;
        let said = say(link.socket.as_ref(), &Frame::Ask(rkey));
        if first {
            self.alarms.set(key, deadline);
        }
        self.said(key, said)?;
        self.settle()
    }

    /// Answers `RegionAsked`; `None` if there is no such region, or none that the peer may use.
    ///
    /// # Errors
    /// It was not asked, the connection does not stand, or what is granted cannot be; then the peer is told
    /// that there is no such region.
    pub(in crate::fabric::shm) fn answer_region(
        &mut self,
        key: u64,
        rkey: Rkey,
        grant: Option<Grant>,
    ) -> io::Result<()> {
        let link = self.link_in(key, Phase::Up)?;
        if !take_ask(&mut link.asked, rkey) {
            return Err(wrong_state());
        }
        let socket = link.socket.as_ref();
        let (bad, said) = match grant.map(|grant| say_grant(socket, rkey, &grant)) {
            Some(Ok(said)) => (None, said),
            Some(Err(bad)) => (Some(bad), say(socket, &Frame::Grant(rkey, None))),
            None => (None, say(socket, &Frame::Grant(rkey, None))),
        };
        self.said(key, said)?;
        bad.map_or(Ok(()), Err)
    }

    /// The end, if it is in this phase.
    fn link_in(&mut self, key: u64, phase: Phase) -> io::Result<&mut Link> {
        let link = self.links.get_mut(&key);
        link.filter(|link| link.phase == phase)
            .ok_or_else(wrong_state)
    }

    /// The embedder has answered a request, so it counts no longer.
    fn answered(&mut self, key: u64) {
        let listener = self.links.get(&key).and_then(|link| link.listener);
        if let Some(listener) = listener.and_then(|at| self.listeners.get_mut(&at)) {
            listener.asked.remove(&key);
        }
    }

    /// A peer that takes no more frames is gone, or floods us.
    fn said(&mut self, key: u64, said: io::Result<()>) -> io::Result<()> {
        if said.is_err() {
            self.end(key, Ending::Gone);
            self.settle()?;
        }
        said
    }

    fn drop_link(&mut self, key: u64) {
        self.answered(key);
        let Some(link) = self.links.get(&key) else {
            return;
        };
        if link.phase.rejects_when_given_up() {
            let reject = Frame::Reject(Reason::Consumer, PrivateData::EMPTY);
            let _ = say(link.socket.as_ref(), &reject);
        }
        self.forget(key);
    }

    fn tell(&mut self, key: u64, kind: CmEventKind, status: i32) -> io::Result<()> {
        self.raise(DoorEvent::Cm(CmNews::new(key, kind, status)));
        self.settle()
    }
}

/// Sends a frame without descriptors. Any failure means that the peer is gone, or as good as.
pub(super) fn say(socket: Option<&Seqpacket>, frame: &Frame) -> io::Result<()> {
    let socket = socket.ok_or_else(peer_gone)?;
    socket.send(&frame.encode(), &[]).map_err(|_| peer_gone())
}

/// Sends our end, as a request or an answer.
pub(super) fn say_end(
    socket: &Seqpacket,
    frame: impl FnOnce(EndWords) -> Frame,
    offer: &Offer,
    params: &ConnParams,
    id: u64,
) -> io::Result<()> {
    offer.board.seal_writes()?;
    let board = offer.board.read_only_fd()?;
    let mut fds = vec![offer.inbox.fd(), board.as_fd()];
    fds.extend(offer.bell.as_ref().map(AsFd::as_fd));
    let frame = frame(words(offer, params, id));
    socket.send(&frame.encode(), &fds).map_err(|error| {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return peer_gone();
        }
        error
    })
}

/// Sends a region. The outer error: it cannot be granted; the inner one: the peer is gone.
fn say_grant(socket: Option<&Seqpacket>, rkey: Rkey, grant: &Grant) -> io::Result<io::Result<()>> {
    let words = GrantWords {
        base: grant.base,
        len: grant.len,
        map_bytes: grant.memfd.bytes(),
        access: grant.access,
    };
    let frame = Frame::Grant(rkey, Some(words));
    if !can_be_said(&frame) {
        return Err(cannot("the region is not within its memory"));
    }
    let read_only;
    let fd = if grant.access.is_remote_writable() {
        if grant.memfd.writes_sealed() {
            return Err(cannot("the memory is sealed against writing"));
        }
        // Otherwise a peer could, and nobody else would be let in.
        grant.memfd.seal_seals()?;
        grant.memfd.fd()
    } else {
        // Seals that are sealed are so because peers write it, by another registration.
        if grant.seal && !grant.memfd.seals_sealed() {
            grant.memfd.seal_writes()?;
        }
        read_only = grant.memfd.read_only_fd()?;
        read_only.as_fd()
    };
    let Some(socket) = socket else {
        return Ok(Err(peer_gone()));
    };
    // Each that is not read counts as ours on its way, of which a user has so many for all connections.
    if socket.unread()? > UNREAD_MAX {
        return Ok(Err(peer_gone()));
    }
    Ok(socket.send(&frame.encode(), &[fd]).map_err(|_| peer_gone()))
}

fn words(offer: &Offer, params: &ConnParams, id: u64) -> EndWords {
    EndWords {
        qp: offer.qp,
        access: offer.access,
        geometry: offer.geometry,
        board_bytes: offer.board.bytes(),
        bell: offer.bell.is_some(),
        id,
        params: *params,
    }
}

/// A peer would refuse anything else.
fn check_offer(offer: &Offer, params: &ConnParams) -> io::Result<()> {
    let fits = offer.inbox.bytes() == offer.geometry.bytes() && !offer.inbox.writes_sealed();
    if fits && can_be_said(&Frame::Request(words(offer, params, 0))) {
        return Ok(());
    }
    Err(cannot("an end with numbers that no peer would take"))
}

fn cannot(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}
