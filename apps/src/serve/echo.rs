//! The echo service: every message goes back in the buffer that it came in.

use spinwire::memory::Buffer;
use spinwire::worker::{Completed, ConnId, Io, Message, PostError, Service, Token};
use std::collections::VecDeque;

/// Answers every message with itself. Answers that find the send queue full wait in order; the
/// buffers that they hold are missing for receives, which slows the peer down.
#[derive(Debug, Default)]
pub(super) struct Echo {
    waiting: VecDeque<(ConnId, Buffer)>,
}

impl Echo {
    #[inline]
    fn answer(&mut self, io: &mut Io<'_>, conn: ConnId, buffer: Buffer) {
        if let Err(rejected) = io.send(conn, buffer, Token::default()) {
            // Otherwise the peer is gone, and with it whoever wanted the answer.
            if rejected.reason == PostError::WouldBlock {
                self.waiting.push_back((conn, rejected.payload));
            }
        }
    }
}

impl Service for Echo {
    #[inline]
    fn message(&mut self, io: &mut Io<'_>, conn: ConnId, message: Message) {
        if self.waiting.is_empty() {
            self.answer(io, conn, message.into_buffer());
        } else {
            self.waiting.push_back((conn, message.into_buffer()));
        }
    }

    fn completed(&mut self, io: &mut Io<'_>, _conn: ConnId, completed: Completed) {
        drop(completed);
        for _ in 0..self.waiting.len() {
            let Some((conn, buffer)) = self.waiting.pop_front() else {
                return;
            };
            self.answer(io, conn, buffer);
        }
    }
}
