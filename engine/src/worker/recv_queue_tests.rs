//! The receive queue: every slot has one owner, and every buffer comes back.

use super::*;
use crate::fabric::Note;
use crate::memory::{HugepagePolicy, Region};
use proptest::prelude::*;
use std::collections::HashSet;
use std::sync::Arc;

fn pool(slots: u32) -> Pool {
    let region = Region::allocate(slots as usize * 64, HugepagePolicy::Off).expect("memory");
    Pool::new(Arc::new(region), slots, 64).expect("a pool")
}

proptest! {
    #[test]
    fn a_slot_is_outstanding_once(
        depth in 1u32..80,
        slots in 1u32..100,
        steps in proptest::collection::vec((any::<bool>(), any::<u32>(), 0usize..40), 0..200),
    ) {
        let pool = pool(slots);
        let mut queue = RecvQueue::new(depth);
        queue.open(0, 0, Lkey(9));
        let mut posted: HashSet<u32> = HashSet::new();
        for (fill, pick, refuse_from) in steps {
            if fill {
                let mut chain = RecvChain::new();
                let result = queue.fill(&pool, &mut chain);
                let n = chain.as_slice().len();
                prop_assert_eq!(result.is_err(), pool.free() == 0 && n < POST_CHAIN_MAX && queue.vacant() > 0);
                let accepted = refuse_from.min(n);
                for wr in &chain.as_slice()[..accepted] {
                    prop_assert!(posted.insert(sequence_of(wr.wr_id)), "slot posted twice");
                    prop_assert_eq!(wr.len, 64);
                }
                queue.take_back(&chain, accepted);
            } else {
                let slot = pick % (depth + 3);
                prop_assert_eq!(queue.take(slot).is_some(), posted.remove(&slot));
            }
            prop_assert_eq!(queue.outstanding() as usize, posted.len());
            prop_assert_eq!(queue.vacant() as usize + posted.len(), depth as usize);
            prop_assert_eq!(pool.free() as usize, slots as usize - posted.len());
        }
        queue.reclaim();
        prop_assert_eq!(pool.free(), slots);
        prop_assert_eq!(queue.outstanding(), 0);
    }
}

#[test]
fn early_messages_keep_their_order() {
    let pool = pool(4);
    let mut queue = RecvQueue::new(4);
    queue.open(0, 0, Lkey(1));
    let mut chain = RecvChain::new();
    let result = queue.fill(&pool, &mut chain);
    assert_eq!((chain.as_slice().len(), result), (4, Ok(())));
    for (slot, text) in [(2, b"first"), (0, b"later")] {
        let mut buffer = queue.take(slot).expect("outstanding");
        buffer.copy_from(text).expect("fits");
        queue.keep_early(Message::new(buffer, Note::None, None));
    }
    assert_eq!(&queue.next_early().expect("one")[..], b"first");
    assert_eq!(&queue.next_early().expect("two")[..], b"later");
    assert!(queue.next_early().is_none());
}
