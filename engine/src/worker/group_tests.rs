//! Groups: who is picked, what moves when a member dies, and that workers agree.

use super::*;
use crate::types::{GroupId, GroupShape, Membership};
use proptest::prelude::*;
use std::collections::HashMap;

const ID: GroupId = GroupId(7);

fn conn(worker: u16, index: u16) -> ConnId {
    ConnId {
        worker,
        index,
        generation: 1,
    }
}

fn membership(shape: GroupShape, number: u16) -> Membership {
    Membership {
        group: ID,
        number,
        shape,
    }
}

/// Every worker's part of a group whose members are all up: member `n` is connection `n`.
fn formed(shape: GroupShape, workers: std::ops::Range<u16>) -> Vec<Group> {
    let part = |worker| {
        let mut group = Group::new(ID, shape, worker);
        for number in shape.members_on(worker) {
            let member = membership(shape, number);
            group.join(conn(worker, number), &member).expect("awaited");
        }
        assert_eq!(group.awaited(), 0);
        group
    };
    workers.map(part).collect()
}

/// The member that a key has: each worker says the same.
fn home(groups: &[Group], key: u64) -> Result<u16, NoPick> {
    let picks: Vec<_> = groups.iter().map(|g| g.by_hash(key)).collect();
    let at_home = picks.iter().zip(groups).find(|(pick, _)| {
        // Whoever does not send the key elsewhere is its home.
        !matches!(pick, Err(NoPick::OnWorker(_)))
    });
    let (pick, home) = at_home.expect("a home");
    for (pick, group) in picks.iter().zip(groups) {
        if group.worker() != home.worker() {
            assert_eq!(*pick, Err(NoPick::OnWorker(home.worker())), "key {key}");
        }
    }
    pick.map(|conn| conn.index)
}

fn up(group: &Group) -> Vec<u16> {
    group.members().map(|(number, _)| number).collect()
}

#[test]
fn round_robin_takes_turns_and_passes_over_the_dead() {
    let shape = GroupShape::new(6, 0, 2).expect("a shape");
    let mut group = formed(shape, 0..2).remove(0);
    let picks = |group: &mut Group, n: usize| -> Vec<u16> {
        let pick = |_| group.pick(Policy::RoundRobin, |_| 0).expect("one is up");
        (0..n).map(pick).map(|c| c.index).collect()
    };
    assert_eq!(picks(&mut group, 5), [0, 2, 4, 0, 2]);
    assert_eq!(group.left(conn(0, 4)), Some(4));
    assert_eq!(group.left(conn(0, 4)), None, "once");
    assert_eq!(picks(&mut group, 3), [0, 2, 0]);
    assert_eq!(
        (group.left(conn(0, 0)), group.left(conn(0, 2))),
        (Some(0), Some(2))
    );
    assert_eq!(group.round_robin(), Err(NoPick::NoneLeft));
}

#[test]
fn a_group_forms_member_by_member() {
    let shape = GroupShape::new(4, 1, 2).expect("a shape");
    let mut group = Group::new(ID, shape, 2);
    assert_eq!(
        (group.awaited(), group.round_robin()),
        (2, Err(NoPick::Forming))
    );
    let all = formed(shape, 1..3);
    let key_of = |number| (0..).find(|key| home(&all, *key) == Ok(number));
    let [first, last] = [1, 3].map(|number| key_of(number).expect("a key of the member"));
    assert_eq!(group.by_hash(first), Err(NoPick::Forming));
    let at = conn(2, 9);
    let stranger = Membership {
        group: GroupId(8),
        ..membership(shape, 1)
    };
    assert_eq!(group.join(at, &stranger), Err(NotOfGroup));
    let other_shape = GroupShape::new(5, 1, 2).expect("a shape");
    assert_eq!(
        group.join(at, &membership(other_shape, 1)),
        Err(NotOfGroup),
        "of another shape"
    );
    assert_eq!(
        group.join(at, &membership(shape, 0)),
        Err(NotOfGroup),
        "on worker 1"
    );
    assert_eq!(
        group.join(at, &membership(shape, 4)),
        Err(NotOfGroup),
        "no such member"
    );
    group.join(at, &membership(shape, 1)).expect("awaited");
    assert_eq!(
        group.join(conn(2, 8), &membership(shape, 1)),
        Err(NotOfGroup),
        "taken"
    );
    assert_eq!((group.awaited(), group.round_robin()), (1, Ok(at)));
    assert_eq!(group.by_hash(first), Ok(at));
    assert_eq!(
        group.by_hash(last),
        Err(NoPick::Forming),
        "nobody stands in"
    );
    group
        .join(conn(2, 8), &membership(shape, 3))
        .expect("awaited");
    assert_eq!(group.by_hash(last), Ok(conn(2, 8)));
    // What ended is not awaited: another connection does not take its place.
    group.left(at).expect("a member");
    assert_eq!(
        group.join(conn(2, 7), &membership(shape, 1)),
        Err(NotOfGroup)
    );
}

#[test]
fn a_connection_without_membership_joins_nothing() {
    let shape = GroupShape::new(1, 0, 1).expect("a shape");
    let mut peer = Peer {
        role: Role::Active,
        address: None,
        private_data: crate::fabric::PrivateData::EMPTY,
        initiator_depth: 1,
        responder_resources: 1,
        tag: 0,
        membership: None,
        hello: None,
    };
    let mut group = Group::new(ID, shape, 0);
    assert_eq!(group.joined(conn(0, 0), &peer), Err(NotOfGroup));
    peer.membership = Some(membership(shape, 0));
    group.joined(conn(0, 0), &peer).expect("awaited");
    assert_eq!(up(&Group::of(conn(0, 0), &membership(shape, 0))), [0]);
}

#[test]
fn equals_take_turns_when_the_least_is_wanted() {
    let shape = GroupShape::new(3, 0, 1).expect("a shape");
    let mut group = formed(shape, 0..1).remove(0);
    let mut pick = |loads: [u32; 3]| {
        let load = |c: ConnId| loads[usize::from(c.index)];
        group
            .pick(Policy::LeastOutstanding, load)
            .expect("one is up")
            .index
    };
    assert_eq!(
        [pick([0; 3]), pick([0; 3]), pick([0; 3]), pick([0; 3])],
        [0, 1, 2, 0]
    );
    assert_eq!(
        [pick([5, 9, 5]), pick([5, 9, 5]), pick([5, 9, 5])],
        [2, 0, 2]
    );
    assert_eq!(pick([5, 4, 5]), 1);
}

/// 64 keys a member; their number on each member is within five standard deviations of that.
#[test]
fn keys_are_spread_evenly_over_members() {
    for members in [2, 4, 7, 16] {
        let shape = GroupShape::new(members, 0, 2).expect("a shape");
        let groups = formed(shape, 0..2);
        for stride in [1u64, 8, 4096, 0x0001_0000_0001] {
            let mut counts: HashMap<u16, u32> = HashMap::new();
            let keys = u64::from(members) * 1000;
            for key in (0..keys).map(|n| n.wrapping_mul(stride)) {
                *counts
                    .entry(home(&groups, key).expect("a member"))
                    .or_default() += 1;
            }
            assert_eq!(counts.len(), usize::from(members));
            for (member, count) in counts {
                let off = i64::from(count) - 1000;
                assert!(
                    off.abs() < 160,
                    "{count} keys on {member} of {members}, {stride}"
                );
            }
        }
    }
}

#[test]
fn a_worker_without_members_keeps_its_keys_until_it_is_left_out() {
    let shape = GroupShape::new(6, 0, 3).expect("a shape");
    let mut groups = formed(shape, 0..3);
    let before: Vec<u16> = (0..500)
        .map(|k| home(&groups, k).expect("a member"))
        .collect();
    for number in shape.members_on(1) {
        groups[1].left(conn(1, number)).expect("a member");
    }
    for (key, was) in (0..500).zip(&before) {
        let expected = if was % 3 == 1 {
            Err(NoPick::NoneLeft)
        } else {
            Ok(*was)
        };
        assert_eq!(home(&groups, key), expected);
    }
    groups.iter_mut().for_each(|g| g.leave_out(1));
    for (key, was) in (0..500).zip(&before) {
        let now = home(&groups, key).expect("a member");
        assert_ne!(now % 3, 1);
        assert!(was % 3 == 1 || now == *was, "key {key}: {was}, now {now}");
    }
    groups
        .iter_mut()
        .for_each(|g| (0..9).for_each(|w| g.leave_out(w)));
    assert!(groups.iter().all(|g| g.by_hash(3) == Err(NoPick::NoneLeft)));
}

proptest! {
    /// Only the keys of the member that died move, and they stay on its worker.
    #[test]
    fn only_the_keys_of_the_dead_move(
        members in 1u16..24,
        first in 0u16..4,
        workers in 1u16..5,
        deaths in prop::collection::vec(any::<prop::sample::Index>(), 0..24),
        keys in prop::collection::vec(any::<u64>(), 64),
    ) {
        let shape = GroupShape::new(members, first, workers).expect("a shape");
        // A worker beyond the members has none, and knows where the keys belong all the same.
        let mut groups = formed(shape, first..first + workers);
        let mut before: Vec<_> = keys.iter().map(|key| home(&groups, *key)).collect();
        for death in deaths {
            let dead = u16::try_from(death.index(members.into())).expect("small");
            let worker = shape.worker_of(dead);
            groups[usize::from(worker - first)].left(conn(worker, dead));
            for (key, was) in keys.iter().zip(&mut before) {
                let now = home(&groups, *key);
                if let Ok(was) = was && *was != dead {
                    prop_assert_eq!(now, Ok(*was));
                }
                if let (Ok(was), Ok(now)) = (&was, now) {
                    prop_assert_eq!(shape.worker_of(*was), shape.worker_of(now));
                    prop_assert_ne!(now, dead);
                }
                *was = now;
            }
        }
    }

    #[test]
    fn the_least_outstanding_is_picked(
        members in 1u16..12,
        dead in prop::collection::vec(any::<bool>(), 12),
        rounds in prop::collection::vec(prop::collection::vec(0u32..4, 12), 1..20),
    ) {
        let shape = GroupShape::new(members, 3, 1).expect("a shape");
        let mut group = formed(shape, 3..4).remove(0);
        for number in (0..members).filter(|n| dead[usize::from(*n)]) {
            group.left(conn(3, number)).expect("a member");
        }
        let living = up(&group);
        for loads in rounds {
            let load = |number: u16| loads[usize::from(number)];
            let least = living.iter().map(|n| load(*n)).min();
            match group.least_outstanding(|c| load(c.index)) {
                Ok(picked) => prop_assert_eq!(Some(load(picked.index)), least),
                Err(none) => prop_assert_eq!((none, least), (NoPick::NoneLeft, None)),
            }
        }
    }

    /// Between two picks of a member in turn, every other is picked once.
    #[test]
    fn round_robin_is_fair(members in 1u16..12, picks in 1u16..100) {
        let shape = GroupShape::new(members, 0, 1).expect("a shape");
        let mut group = formed(shape, 0..1).remove(0);
        for n in 0..picks {
            let picked = group.round_robin().expect("one is up");
            prop_assert_eq!(picked.index, n % members);
        }
    }
}
