//! More connections than a poll looks at, and lanes on threads of their own.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn more_connections_than_are_hot_are_all_looked_after() {
    for shared in [0, 64] {
        let mut rig = Rig::new(&format!("many{shared}"), shared);
        let mut pairs: Vec<_> = (0..50).map(|_| rig.connect(shared > 0)).collect();
        let mut heard = vec![0_u32; pairs.len()];
        let numbers: Vec<_> = pairs.iter().map(|p| p[1].control.handle.number).collect();
        let rounds = 20;
        for round in 0..rounds {
            for pair in &mut pairs {
                let wr = rig.recv(round, 0);
                let taken = if shared > 0 {
                    rig.lanes[1].post_shared_recv(&[wr])
                } else {
                    rig.lanes[1].post_recv(&mut pair[1].qp, &[wr])
                };
                taken.unwrap();
                let told = SendOp::SendImm(u32::try_from(round).unwrap());
                let wr = rig.send(told, 8192, 100);
                rig.lanes[0].post_send(&mut pair[0].qp, &[wr], &[]).unwrap();
            }
            let deadline = Instant::now() + PATIENCE;
            let (mut come, mut sent) = (0, 0);
            while come < pairs.len() || sent < pairs.len() {
                for wc in rig.poll(1) {
                    let which = numbers.iter().position(|n| *n == wc.qp_num()).unwrap();
                    assert_eq!(wc.note(), crate::fabric::Note::Imm(heard[which]));
                    heard[which] += 1;
                    come += 1;
                }
                for wc in rig.poll(0) {
                    assert!(wc.is_success());
                    sent += 1;
                }
                assert!(Instant::now() < deadline, "{come} came, {sent} are done");
            }
        }
        for [active, passive] in pairs {
            rig.destroy(active);
            rig.destroy(passive);
        }
        assert_eq!(rig.fabric.alive(), (0, 1));
    }
}

/// Two threads that poll, one that registers and forgets memory meanwhile.
#[test]
fn lanes_on_threads_of_their_own() {
    let mut rig = Rig::new("threads", 0);
    let [active, passive] = rig.connect(false);
    let device = rig.fabric.devices().remove(0);
    let (count, len) = (20_000_u64, 300);
    let over = AtomicBool::new(false);
    let lkey = rig.registration.lkey();
    let addr = rig.addr(8192);
    let recv = rig.recv(0, 0);
    let [mut here, mut there] = [active.qp, passive.qp];
    let [lane, other] = &mut rig.lanes;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let region = Region::shared(4096).unwrap();
                let registered = device.register(Arc::new(region), Access::LOCAL_WRITE);
                drop(registered.unwrap());
            }
        });
        let sender = scope.spawn(move || {
            let (mut sent, mut done) = (0, 0);
            let deadline = Instant::now() + PATIENCE;
            while done < count {
                assert!(Instant::now() < deadline, "{sent} sent, {done} done");
                if sent < count {
                    let wr = send(lkey, addr, SendOp::Send, len);
                    sent += u64::from(lane.post_send(&mut here, &[wr], &[]).is_ok());
                }
                let mut wcs = [ShmLane::blank(); 8];
                let n = lane.poll(&mut wcs);
                for wc in &wcs[..n] {
                    assert_eq!(wc.status(), WcStatus::Success);
                    done += 1;
                }
            }
            here
        });
        let receiver = scope.spawn(move || {
            let (mut posted, mut come) = (0, 0);
            let deadline = Instant::now() + PATIENCE;
            while come < count {
                assert!(Instant::now() < deadline, "{posted} posted, {come} came");
                if posted < count {
                    posted += u64::from(other.post_recv(&mut there, &[recv]).is_ok());
                }
                let mut wcs = [ShmLane::blank(); 8];
                let n = other.poll(&mut wcs);
                for wc in &wcs[..n] {
                    assert_eq!((wc.status(), wc.byte_len()), (WcStatus::Success, 300));
                    come += 1;
                }
            }
            // The last are acknowledged by the poll behind them.
            assert_eq!(other.poll(&mut [ShmLane::blank()]), 0);
            there
        });
        let _here = sender.join().unwrap();
        let _there = receiver.join().unwrap();
        over.store(true, Ordering::Relaxed);
    });
}

/// What a QP took is given back when its lane has heard of its end, by the next look at events.
#[test]
fn nothing_is_kept_of_a_connection_that_is_destroyed() {
    let mut rig = Rig::new("buried", 0);
    for _ in 0..3 {
        let [active, passive] = rig.connect(false);
        let inboxes = [&active, &passive].map(|end| Arc::downgrade(&end.inbox));
        rig.destroy(active);
        rig.destroy(passive);
        assert!(rig.poll(0).is_empty() && rig.poll(1).is_empty());
        while rig.fabric.next_event().unwrap().is_some() {}
        assert!(inboxes.iter().all(|inbox| inbox.strong_count() == 0));
        assert_eq!(rig.fabric.alive(), (0, 1));
    }
}
