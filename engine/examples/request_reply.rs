//! A service that answers requests, and a client that asks: framed mode in one file.
//!
//! ```text
//! cargo run --release --example request_reply serve rdma://0.0.0.0:7471
//! cargo run --release --example request_reply ask rdma://10.0.0.1:7471 100000
//! ```
//! The server gives each text back in capitals. Both keep as many requests under way as the other
//! side has receives for, and neither ever counts them: `WouldBlock` and `writable` are all there is.
//! Processes of one host need no device: `shm://NAME` is an address too.

use spinwire::Engine;
use spinwire::config::{Config, Host, Side};
use spinwire::control::Offer;
use spinwire::fabric::Url;
use spinwire::framed::{Frame, Framed, FramedIo, Payload, RequestId, SendError, Service};
use spinwire::sys::signal::StopSignal;
use spinwire::worker::{CloseReason, ConnId, Peer, Token};
use std::collections::VecDeque;
use std::error::Error;
use std::sync::mpsc::{self, Sender};
use std::time::Instant;

/// The server: one of these on each worker core. Handlers run to completion there, without locks.
#[derive(Default)]
struct Capitals {
    /// Answers that the peer was not ready to receive.
    waiting: VecDeque<(ConnId, RequestId, Frame)>,
}

impl Capitals {
    fn answer(&mut self, io: &mut FramedIo<'_>, conn: ConnId, id: RequestId, answer: Frame) {
        // Refused for any other reason, the asker is gone, and dropping the frame frees its buffer.
        if let Err(refused) = io.reply(conn, id, answer, Token::default())
            && refused.reason == SendError::WouldBlock
        {
            self.waiting.push_back((conn, id, refused.frame));
        }
    }
}

impl Service for Capitals {
    fn request(&mut self, io: &mut FramedIo<'_>, conn: ConnId, id: RequestId, question: Payload) {
        // The answer goes out in the buffer that the NIC wrote the question to.
        let mut answer = question.into_frame();
        answer.make_ascii_uppercase();
        self.answer(io, conn, id, answer);
    }
    fn writable(&mut self, io: &mut FramedIo<'_>, _: ConnId) {
        for (conn, id, answer) in std::mem::take(&mut self.waiting) {
            self.answer(io, conn, id, answer);
        }
    }
    fn disconnected(&mut self, _: &mut FramedIo<'_>, conn: ConnId, _: CloseReason) {
        self.waiting.retain(|(of, ..)| *of != conn);
    }
}

fn serve(at: &Url) -> Result<(), Box<dyn Error>> {
    let stop = StopSignal::install()?; // before any thread: they inherit the mask
    let plan = Config::default_for(&Host::probe_for(at)?, Side::Server)?;
    let engine = Engine::start(&plan, |_| Framed::new(Capitals::default()))?;
    println!("listening on {}", engine.listen_with(at, Offer::framed())?);
    let left = engine.run_until(&stop)?;
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

/// The client: asks `count` times, checks every answer, and tells the main thread how it went.
struct Asker {
    count: u64,
    asked: u64,
    answered: u64,
    tell: Sender<Result<(), String>>,
}

impl Asker {
    /// Asks until all is asked, or the server or the pool wants us to wait.
    fn ask(&mut self, io: &mut FramedIo<'_>, conn: ConnId) {
        while self.asked < self.count {
            let Ok(mut question) = io.frame() else { return };
            let text = format!("question {}", self.asked);
            question.copy_from(text.as_bytes()).expect("it is short");
            let id = RequestId(self.asked);
            if io.request(conn, question, id, Token(self.asked)).is_err() {
                return; // `writable` follows, or `disconnected`
            }
            self.asked += 1;
        }
    }
}

impl Service for Asker {
    fn connected(&mut self, io: &mut FramedIo<'_>, conn: ConnId, _: &Peer) {
        self.ask(io, conn);
    }
    fn writable(&mut self, io: &mut FramedIo<'_>, conn: ConnId) {
        self.ask(io, conn);
    }
    fn reply(&mut self, io: &mut FramedIo<'_>, conn: ConnId, id: RequestId, answer: Payload) {
        let expected = format!("QUESTION {}", id.0);
        if *answer != *expected.as_bytes() {
            let _ = self.tell.send(Err(format!("wrong answer to {}", id.0)));
        }
        drop(answer); // its buffer is free for the next receive
        self.answered += 1;
        if self.answered == self.count {
            let _ = self.tell.send(Ok(()));
        } else {
            self.ask(io, conn);
        }
    }
    fn disconnected(&mut self, _: &mut FramedIo<'_>, _: ConnId, reason: CloseReason) {
        let _ = self.tell.send(Err(reason.to_string()));
    }
}

fn ask(server: &Url, count: u64) -> Result<(), Box<dyn Error>> {
    let plan = Config::default_for(&Host::probe_for(server)?, Side::Client)?;
    let (tell, told) = mpsc::channel();
    let engine = Engine::start(&plan, move |_| {
        Framed::new(Asker {
            count,
            asked: 0,
            answered: 0,
            tell: tell.clone(),
        })
    })?;
    let began = Instant::now();
    engine.connect(server, Offer::framed())?;
    told.recv()??;
    println!("{count} answers in {:?}", began.elapsed());
    let left = engine.shutdown()?;
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", url] => serve(&url.parse()?),
        ["ask", url, count] => ask(&url.parse()?, count.parse::<u64>()?.max(1)),
        _ => Err("usage: request_reply serve URL | request_reply ask URL COUNT".into()),
    }
}
