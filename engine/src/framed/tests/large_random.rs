//! Any order of offers, answers, pauses, turns and arrivals, among other messages and with small queues
//! and pools: every large message ends once on each side, with the right bytes, and nothing stands still.

use super::large_rig::{self, message, pattern};
use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Turn(bool),
    Carry(bool, usize),
    Send(bool, usize),
    Pour(bool, u32),
    Region(bool, u32),
    Chunks(bool, u32),
    Refuse(bool, u32),
    Pause(bool, u32),
    Resume(bool, u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (side, id) = (any::<bool>(), 0..10_u32);
    let on =
        move |make: fn(bool, u32) -> Step| (side, id.clone()).prop_map(move |(s, i)| make(s, i));
    let step = prop_oneof![
        4 => any::<bool>().prop_map(Step::Turn),
        4 => (any::<bool>(), 1..20_usize).prop_map(|(side, n)| Step::Carry(side, n)),
        3 => (any::<bool>(), 1..1500_usize).prop_map(|(side, n)| Step::Send(side, n)),
        1 => (any::<bool>(), 1..8_u32).prop_map(|(side, n)| Step::Pour(side, n)),
        2 => on(Step::Region),
        2 => on(Step::Chunks),
        1 => on(Step::Refuse),
        1 => on(Step::Pause),
        1 => on(Step::Resume),
    ];
    proptest::collection::vec(step, 0..120)
}

fn size() -> impl Strategy<Value = Size> {
    let sizes = (2..20_u32, 4..24_u32, 0..20_u32, any::<bool>());
    sizes.prop_map(|(send_depth, recv_depth, more, shared)| Size {
        send_depth,
        recv_depth,
        slots: (1 + u32::from(shared)) * recv_depth + 4 + more,
        shared,
    })
}

fn side(p: &mut Pair, a: bool) -> &mut Side {
    if a { &mut p.a } else { &mut p.b }
}

fn order(
    p: &mut Pair,
    a: bool,
    what: impl FnOnce(&mut Probe, &mut FramedIo<'_>, ConnId) + 'static,
) {
    side(p, a).order(act(what));
}

/// Accepts where the service has said nothing yet; the memory is its own.
fn accept_region(p: &mut Pair, a: bool, id: u32) {
    let memory = large_rig::expose(side(p, a), 1500, Access::LOCAL_WRITE);
    order(p, a, move |_, io, conn| {
        let span = memory.span(0, 1500).expect("all of it");
        let accepted = io.accept_large(conn, LargeId(id), span);
        let none = |r: &SinkRefused| r.reason == AcceptError::NoSuchMessage;
        assert!(accepted.as_ref().err().is_none_or(none));
    });
}

/// Sends a message whose bytes follow from its number and length; false if it has to wait.
fn send(p: &mut Pair, a: bool, number: &mut u64, len: usize) -> bool {
    let seed = usize::try_from(*number).expect("few");
    let span = message(side(p, a), seed, len);
    let taken = large_rig::send(side(p, a), span, *number);
    let blocked = [LargeSendError::WouldBlock, LargeSendError::NoBuffer];
    assert!(taken.is_none_or(|reason| blocked.contains(&reason)));
    *number += u64::from(taken.is_none());
    taken.is_none()
}

/// Checks what one side saw of the messages of the other; gives how many it finished reading.
fn check_received(seen: &[Seen]) -> usize {
    let (mut lens, mut parts) = (Vec::new(), std::collections::HashMap::new());
    let mut done = 0;
    for s in seen {
        match s {
            Seen::Large(incoming) => {
                assert_eq!(incoming.id.0 as usize, lens.len(), "in order");
                assert_eq!(incoming.tag, 1000 + lens.len() as u64);
                lens.push(incoming.len_bytes as usize);
            }
            Seen::Chunk(id, offset, bytes, is_last) => {
                let all: &mut Vec<u8> = parts.entry(*id).or_default();
                assert_eq!(*offset as usize, all.len());
                all.extend_from_slice(bytes);
                assert_eq!(*is_last, all.len() == lens[*id as usize]);
            }
            Seen::LargeDone(id, ReceiveOutcome::Done, region) => {
                let right = pattern(*id as usize, lens[*id as usize]);
                assert_eq!(region.as_ref().unwrap_or_else(|| &parts[id]), &right);
                done += 1;
            }
            _ => {}
        }
    }
    done
}

fn check_sent(seen: &[Seen], count: u64) -> usize {
    let mut tokens = Vec::new();
    let mut done = 0;
    for s in seen {
        if let Seen::LargeSent(token, outcome) = s {
            tokens.push(*token);
            done += usize::from(*outcome == LargeOutcome::Done);
            assert!(matches!(
                outcome,
                LargeOutcome::Done | LargeOutcome::Refused
            ));
        }
    }
    tokens.sort_unstable();
    assert_eq!(tokens, (0..count).collect::<Vec<_>>(), "each once");
    done
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_large_message_ends_once_on_each_side(a in size(), b in size(), steps in steps()) {
        let mut p = Pair::new(a, b);
        let mut numbers = [0_u64; 2];
        for step in steps {
            match step {
                Step::Turn(a) => drop(side(&mut p, a).turn()),
                Step::Carry(a, n) => drop(p.carry(if a { Way::AToB } else { Way::BToA }, n)),
                Step::Send(a, len) => {
                    send(&mut p, a, &mut numbers[usize::from(a)], len);
                }
                Step::Pour(a, n) => side(&mut p, a).probe().to_send += n,
                Step::Region(a, id) => accept_region(&mut p, a, id),
                Step::Chunks(a, id) => order(&mut p, a, move |_, io, conn| {
                    let _ = io.accept_large_in_chunks(conn, LargeId(id));
                }),
                Step::Refuse(a, id) => order(&mut p, a, move |_, io, conn| {
                    io.refuse_large(conn, LargeId(id));
                }),
                Step::Pause(a, id) => order(&mut p, a, move |_, io, conn| {
                    io.pause_large(conn, LargeId(id));
                }),
                Step::Resume(a, id) => order(&mut p, a, move |_, io, conn| {
                    io.resume_large(conn, LargeId(id));
                }),
            }
        }
        // Everything that is offered is taken, and nothing is paused any more.
        p.settle();
        for a in [true, false] {
            let offered = u32::try_from(numbers[usize::from(!a)]).expect("few");
            order(&mut p, a, move |_, io, conn| {
                for id in 0..offered {
                    let _ = io.accept_large_in_chunks(conn, LargeId(id));
                    io.resume_large(conn, LargeId(id));
                }
            });
        }
        p.settle();
        let (a, b) = (p.a.seen(), p.b.seen());
        prop_assert_eq!(check_received(&a), check_sent(&b, numbers[0]));
        prop_assert_eq!(check_received(&b), check_sent(&a, numbers[1]));
        prop_assert_eq!((p.a.asked, p.b.asked), (None, None));
        // The connection is as good as new.
        let mut before = numbers[1];
        prop_assert!(send(&mut p, true, &mut before, 1000));
        p.settle();
        p.end();
    }
}
