//! Lanes that sleep on their events.

use super::*;

/// A worker that sleeps whenever there is nothing to do. That it is ever woken too late is seen by the time
/// that it slept.
struct Sleeper<'a> {
    lane: &'a mut ShmLane,
    qp: &'a mut ShmQp,
    sleeps: u32,
}

impl Sleeper<'_> {
    /// The next completions.
    fn next(&mut self) -> Vec<PlainWc> {
        let mut wcs = [ShmLane::blank(); 8];
        loop {
            let n = self.lane.poll(&mut wcs);
            if n > 0 {
                return wcs[..n].to_vec();
            }
            self.lane.arm().unwrap();
            let n = self.lane.poll(&mut wcs);
            if n > 0 {
                return wcs[..n].to_vec();
            }
            self.sleeps += 1;
            let fd = self.lane.event_fd().unwrap();
            let mut fds = [rustix::event::PollFd::from_borrowed_fd(
                fd,
                rustix::event::PollFlags::IN,
            )];
            let wait = rustix::event::Timespec {
                tv_sec: 10,
                tv_nsec: 0,
            };
            let woken = rustix::event::poll(&mut fds, Some(&wait)).unwrap();
            assert_eq!(woken, 1, "nobody woke the lane");
            self.lane.drain_events();
        }
    }
}

/// Messages longer than the inbox, receives that come late, small messages between: no lane sleeps over
/// what only its own poll, or the peer's, would bring.
#[test]
fn lanes_that_sleep_are_woken() {
    let mut rig = Rig::new("sleep", 0);
    let [mut active, mut passive] = rig.connect(false);
    let count = 400_u64;
    let (lkey, addr) = (rig.registration.lkey(), rig.addr(0));
    let len_of = |n: u64| match n % 5 {
        0 => 350_000,
        1 => 9,
        2 => 5000,
        3 => 0,
        _ => 60_000,
    };
    let [lane, other] = &mut rig.lanes;
    let (here, there) = (&mut active.qp, &mut passive.qp);
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let (qp, sleeps) = (here, 0);
            let mut end = Sleeper { lane, qp, sleeps };
            let (mut sent, mut done) = (0, 0);
            while done < count {
                while sent < count && sent - done < 6 {
                    let wr = send(lkey, addr, SendOp::Send, len_of(sent));
                    end.lane.post_send(end.qp, &[wr], &[]).unwrap();
                    sent += 1;
                }
                for wc in end.next() {
                    assert_eq!(wc.status(), WcStatus::Success);
                    done += 1;
                }
            }
            end.sleeps
        });
        let receiver = scope.spawn(move || {
            let (qp, sleeps) = (there, 0);
            let mut end = Sleeper {
                lane: other,
                qp,
                sleeps,
            };
            for come in 0..count {
                if come % 50 == 7 {
                    // The sender has long been asleep then.
                    std::thread::sleep(Duration::from_millis(5));
                }
                let wr = RecvWr {
                    wr_id: come,
                    addr: addr + 400_000,
                    len: 400_000,
                    lkey,
                };
                end.lane.post_recv(end.qp, &[wr]).unwrap();
                let wcs = end.next();
                assert_eq!(wcs.len(), 1);
                assert_eq!((wcs[0].status(), wcs[0].wr_id()), (WcStatus::Success, come));
                assert_eq!(wcs[0].byte_len() as usize, len_of(come));
            }
            // The last is acknowledged when the worker goes to sleep.
            end.lane.arm().unwrap();
            end.sleeps
        });
        let sleeps = [sender.join().unwrap(), receiver.join().unwrap()];
        assert!(sleeps[0] > 0 && sleeps[1] > 0, "{sleeps:?}");
    });
    rig.destroy(active);
    rig.destroy(passive);
}
