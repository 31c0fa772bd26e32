//! Any order of turns, sends, arrivals, kept and freed buffers: no message finds no receive, all
//! arrive in order, and once buffers are free nothing stands still.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Turn(bool),
    Pour(bool, u32),
    Carry(bool, usize),
    Free(bool, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => any::<bool>().prop_map(Step::Turn),
        2 => (any::<bool>(), 1..12_u32).prop_map(|(side, n)| Step::Pour(side, n)),
        3 => (any::<bool>(), 1..20_usize).prop_map(|(side, n)| Step::Carry(side, n)),
        1 => (any::<bool>(), 1..12_usize).prop_map(|(side, n)| Step::Free(side, n)),
    ];
    proptest::collection::vec(step, 0..120)
}

fn size() -> impl Strategy<Value = Size> {
    let sizes = (2..20_u32, 4..24_u32, 0..40_u32, any::<bool>());
    sizes.prop_map(|(send_depth, recv_depth, more, shared)| Size {
        send_depth,
        recv_depth,
        shared,
        // The receives (shared, those of the other place too), one for credits, and one at least to send
        // with.
        slots: recv_depth * (1 + u32::from(shared)) + 2 + more,
    })
}

fn side(p: &mut Pair, a: bool) -> &mut Side {
    if a { &mut p.a } else { &mut p.b }
}

fn way(a: bool) -> Way {
    if a { Way::AToB } else { Way::BToA }
}

fn numbers(seen: &[Seen]) -> Vec<Vec<u8>> {
    let message = |s: &Seen| match s {
        Seen::Message(bytes) => Some(bytes.clone()),
        _ => None,
    };
    seen.iter().filter_map(message).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn nothing_overruns_and_nothing_stands_still(a in size(), b in size(), steps in steps()) {
        let mut p = Pair::new(a, b);
        for a in [true, false] {
            side(&mut p, a).probe().kept = Some(VecDeque::new());
        }
        for step in steps {
            match step {
                Step::Turn(a) => drop(side(&mut p, a).turn()),
                Step::Pour(a, n) => {
                    let side = side(&mut p, a);
                    side.probe().to_send += n;
                    side.turn();
                }
                Step::Carry(a, n) => drop(p.carry(way(a), n)),
                Step::Free(a, n) => {
                    let kept = side(&mut p, a).probe().kept.as_mut();
                    let kept = kept.expect("kept");
                    kept.drain(..n.min(kept.len()));
                }
            }
        }
        // Nobody keeps anything any more, and all that is wanted gets through.
        for a in [true, false] {
            side(&mut p, a).probe().kept = None;
        }
        p.settle();
        for a in [true, false] {
            let sent = side(&mut p, a).probe().next;
            prop_assert_eq!(side(&mut p, a).probe().to_send, 0);
            let seen = side(&mut p, !a).seen();
            let wanted: Vec<_> = (0..sent).map(numbered).collect();
            prop_assert_eq!(numbers(&seen), wanted);
            side(&mut p, !a).probe().seen = seen;
        }
        for a in [true, false] {
            let sent = u64::from(side(&mut p, a).probe().next);
            let seen = side(&mut p, a).seen();
            let done: Vec<u64> = seen.iter().filter_map(|s| match s {
                Seen::Sent(token, Outcome::Done) => Some(*token),
                _ => None,
            }).collect();
            prop_assert_eq!(done, (0..sent).collect::<Vec<_>>());
        }
        p.end();
    }
}
