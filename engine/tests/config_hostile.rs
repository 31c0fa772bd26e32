//! Whatever a file says, it makes a plan that keeps every promise, or errors; never a panic.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod config_common;

use config_common::{MIB, device, host, plan_of, rxe, shm, siw};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::FileFailurePersistence;
use spinwire::config::{CONFIG_BYTES_MAX, Config, Host, Plan, Side};
use spinwire::limits::{
    CONNECTIONS_MAX, INLINE_MAX_BYTES, LANES_MAX, QUEUE_DEPTH_MAX, SHARED_RECV_SHARE_MIN,
    SLOT_BYTES_MAX, SLOT_BYTES_MIN, WORKERS_MAX,
};
use spinwire::memory::HugepagePolicy;
use spinwire::types::DeviceLimits;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// What holding a plan proves, written again and apart from the checks.
fn keeps_its_promises(plan: &Plan, host: &Host) -> Result<(), TestCaseError> {
    prop_assert!((1..=WORKERS_MAX).contains(&plan.workers.len()));
    let cores = plan.workers.iter().map(|worker| worker.core);
    let cores: Vec<_> = cores.chain([plan.control.core]).flatten().collect();
    prop_assert_eq!(cores.iter().collect::<BTreeSet<_>>().len(), cores.len());
    prop_assert!(cores.iter().all(|core| host.cores.contains(core)));

    let pool = &plan.pool;
    prop_assert!(pool.slots_max >= pool.slots);
    prop_assert!((SLOT_BYTES_MIN..=SLOT_BYTES_MAX).contains(&pool.slot_bytes));
    prop_assert_eq!(pool.slot_bytes % 64, 0);
    if pool.hugepages == HugepagePolicy::Require {
        prop_assert!(pool.bytes() * plan.workers.len() as u64 <= host.free_hugepages_bytes);
    }
    for worker in &plan.workers {
        prop_assert!((1..=LANES_MAX).contains(&worker.lanes.len()));
        let names: BTreeSet<_> = worker.lanes.iter().map(|lane| &lane.device).collect();
        prop_assert_eq!(names.len(), worker.lanes.len());
        let connections: u64 = worker
            .lanes
            .iter()
            .map(|lane| u64::from(lane.connections_max))
            .sum();
        prop_assert!(connections <= u64::from(CONNECTIONS_MAX));
        for lane in &worker.lanes {
            let device = host
                .devices
                .iter()
                .find(|device| device.name == lane.device)
                .unwrap();
            prop_assert!(device.active);
            let depth_max = QUEUE_DEPTH_MAX.min(device.qp_depth_max);
            prop_assert!((1..=depth_max).contains(&lane.send_depth));
            let shared = lane.shared_recv_depth;
            if shared == 0 {
                prop_assert!((1..=depth_max).contains(&lane.recv_depth));
            } else {
                prop_assert!(shared <= device.shared_recv_depth_max);
                prop_assert!(lane.recv_depth >= SHARED_RECV_SHARE_MIN);
                prop_assert!(
                    u64::from(lane.recv_depth) * u64::from(lane.connections_max) <= shared.into()
                );
                prop_assert!(shared * u32::try_from(worker.lanes.len()).unwrap() < pool.slots);
            }
            prop_assert!(lane.recv_depth < pool.slots);
            prop_assert!(lane.connections_max >= 1);
            prop_assert!(lane.cq_depth <= device.cq_depth_max);
            let own = if shared == 0 { lane.recv_depth } else { 0 };
            let sum = u64::from(lane.connections_max)
                * (u64::from(lane.send_depth) + u64::from(own))
                + u64::from(shared);
            prop_assert!(sum <= u64::from(lane.cq_depth));
            prop_assert!(lane.inline_bytes <= INLINE_MAX_BYTES);
            prop_assert!(pool.bytes() <= device.mr_bytes_max);
        }
    }
    let lanes = || plan.workers.iter().flat_map(|worker| &worker.lanes);
    let on_shm = lanes().filter(|lane| lane.device == "shm0").count();
    prop_assert!(on_shm == 0 || on_shm == lanes().count(), "one fabric");
    let uids = plan.shm.uids.as_deref();
    prop_assert!(uids.is_none_or(|uids| (1..=64).contains(&uids.len())));
    let times = &plan.connection;
    for time in [
        times.resolve_timeout,
        times.connect_timeout,
        times.drain_deadline,
    ] {
        prop_assert!(!time.is_zero() && time <= Duration::from_secs(600));
    }
    prop_assert!(times.retry_count <= 7 && times.rnr_retry_count <= 7);
    Ok(())
}

/// Errors name a line of the file, a value seen and a value allowed; each on a line of its own.
fn survives(text: &str, host: &Host) -> Result<bool, TestCaseError> {
    let config = match Config::from_text(text, "map.toml") {
        Ok(config) => config,
        Err(error) => {
            let shown = error.to_string();
            prop_assert!(shown.starts_with("map.toml:"), "{}", shown);
            prop_assert_eq!(shown.lines().count(), 1, "{}", shown);
            return Ok(false);
        }
    };
    match config.check(host) {
        Ok(plan) => {
            keeps_its_promises(&plan, host)?;
            Ok(true)
        }
        Err(errors) => {
            prop_assert!(!errors.faults().is_empty());
            for fault in errors.faults() {
                let line = fault.line.unwrap_or(0);
                prop_assert!(
                    line >= 1 && line <= text.lines().count().max(1),
                    "{}",
                    fault
                );
                prop_assert!(
                    !fault.seen.is_empty() && !fault.allowed.is_empty(),
                    "{}",
                    fault
                );
                prop_assert_eq!(fault.to_string().lines().count(), 1, "{}", fault);
            }
            Ok(false)
        }
    }
}

fn a_device(name: &'static str) -> impl Strategy<Value = DeviceLimits> {
    let depth = prop_oneof![0u32..200, Just(32_768), Just(u32::MAX)];
    let cq_depth = prop_oneof![0u32..2000, Just(32_767), Just(u32::MAX)];
    let bytes = prop_oneof![0..64 * MIB, Just(u64::MAX)];
    let count = prop_oneof![0u32..300, Just(u32::MAX)];
    (depth, cq_depth, bytes, count, any::<bool>()).prop_map(
        move |(depth, cq_depth, mr_bytes_max, count, active)| DeviceLimits {
            active,
            mr_bytes_max,
            qp_max: count,
            cq_max: count,
            ..device(name, depth, cq_depth)
        },
    )
}

fn a_host() -> impl Strategy<Value = Host> {
    (0usize..10, a_device("rxe0"), a_device("siw0"), 0..256 * MIB)
        .prop_map(|(cores, rxe, siw, free)| host(cores, vec![rxe, siw, shm()], free))
}

/// Numbers near every edge.
fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        40 => (0u64..300).prop_map(|n| n.to_string()),
        8 => (0u64..70_000).prop_map(|n| n.to_string()),
        1 => any::<i64>().prop_map(|n| n.to_string()),
        1 => any::<u32>().prop_map(|n| format!("{n:#x}")),
        1 => Just("\"spin\"".to_owned()),
    ]
}

/// A map with the right keys, each there or not, with all sorts of values.
fn a_map() -> impl Strategy<Value = String> {
    let keys = [
        "send_depth",
        "recv_depth",
        "shared_recv_depth",
        "cq_depth",
        "inline_bytes",
        "connections_max",
    ];
    let queues =
        keys.map(|key| proptest::option::weighted(0.3, number()).prop_map(move |n| line(key, n)));
    let pool = (
        proptest::option::weighted(0.3, number()).prop_map(|n| line("slots", n)),
        proptest::option::weighted(0.4, (0u32..600).prop_map(|n| (n * 64).to_string()))
            .prop_map(|n| line("slot_bytes", n)),
        proptest::option::weighted(0.3, number()).prop_map(|n| line("slots_max", n)),
        prop_oneof!["", "hugepages = \"(require|off)\"\n"],
    );
    let devices = prop_oneof![
        "",
        r#"devices = \["rxe0"\]\n"#,
        r#"devices = \["siw0", "rxe0"\]\n"#,
        r#"devices = \["shm0"\]\n"#
    ];
    let workers = proptest::collection::btree_map(0u32..11, devices, 0..5);
    let receives = prop_oneof![
        2 => "",
        1 => r#"receives = "(own|shared)"\n"#,
        2 => r#"receives = "shared"\n"#,
    ];
    (queues, receives, pool, workers).prop_map(
        |(queues, receives, (slots, slot_bytes, most, pages), workers)| {
            let mut text = format!(
                "[queues]\n{receives}{}[pool]\n{slots}{slot_bytes}{most}{pages}",
                queues.concat()
            );
            for (core, devices) in workers {
                text.push_str(&format!("[[worker]]\ncore = {core}\n{devices}"));
            }
            text
        },
    )
}

fn line(key: &str, value: Option<String>) -> String {
    value
        .map(|value| format!("{key} = {value}\n"))
        .unwrap_or_default()
}

const EXAMPLES: [&str; 6] = [
    include_str!("../../config/shared-memory.toml"),
    include_str!("../../config/many-connections.toml"),
    include_str!("../../config/two-core.toml"),
    include_str!("../../config/two-core-client.toml"),
    include_str!("../../config/event-mode.toml"),
    include_str!("../../config/storage-8-core.toml"),
];

/// One change to the bytes of a text, kept on character borders.
fn mutated() -> impl Strategy<Value = String> {
    let cuts =
        proptest::collection::vec((any::<prop::sample::Index>(), 0usize..12, ".{0,6}"), 1..6);
    (prop::sample::select(&EXAMPLES[..]), cuts).prop_map(|(text, cuts)| {
        let mut chars: Vec<char> = text.chars().collect();
        for (at, length, with) in cuts {
            let start = at.index(chars.len() + 1);
            let end = (start + length).min(chars.len());
            chars.splice(start..end, with.chars());
        }
        chars.into_iter().collect()
    })
}

/// Lines of the examples in any order and number.
fn shuffled() -> impl Strategy<Value = String> {
    let lines: Vec<&str> = EXAMPLES.iter().flat_map(|text| text.lines()).collect();
    proptest::collection::vec(prop::sample::select(lines), 0..40).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn arbitrary_text_is_survived(text in "(?s).{0,300}") {
        survives(&text, &host(2, vec![rxe(), siw()], 0))?;
    }

    #[test]
    fn arbitrary_toml_is_survived(text in r#"(\[{0,2}(worker|pool|x|queues)\]{0,2}\n|(core|slots|a\.b|"")? ?=? ?(-?[0-9_]{1,25}|"[a-z\\]{0,3}"|\[1, \[\]\]|\{a = 1\}|inf)\n?){0,12}"#) {
        survives(&text, &host(2, vec![rxe(), siw()], 0))?;
    }

    #[test]
    fn mutated_examples_are_survived(text in mutated(), host in a_host()) {
        survives(&text, &host)?;
    }

    #[test]
    fn shuffled_examples_are_survived(text in shuffled(), host in a_host()) {
        survives(&text, &host)?;
    }

    #[test]
    fn plans_keep_their_promises(text in a_map(), host in a_host()) {
        survives(&text, &host)?;
    }

    #[test]
    fn default_plans_keep_their_promises(host in a_host(), server in any::<bool>()) {
        let side = if server { Side::Server } else { Side::Client };
        match Config::default_for(&host, side) {
            Ok(plan) => keeps_its_promises(&plan, &host)?,
            Err(errors) => prop_assert!(!errors.faults().is_empty()),
        }
    }
}

/// The random maps are worth something only if many of them pass.
#[test]
fn random_maps_make_plans_and_faults() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let host = host(10, vec![rxe(), siw()], 256 * MIB);
    let cases = 400;
    let plans = (0..cases)
        .filter(|_| {
            let text = a_map().new_tree(&mut runner).unwrap().current();
            plan_of(&text, &host).is_ok()
        })
        .count();
    assert!(
        plans > cases / 10 && plans < cases * 9 / 10,
        "{plans} of {cases}"
    );
}

/// A file as long as any may be takes no time to speak of, whatever is in it.
#[test]
fn the_longest_hostile_files_end_soon() {
    let host = host(2, vec![rxe(), siw()], 0);
    let filled = |piece: &dyn Fn(usize) -> String| {
        let mut text = String::new();
        for n in 0.. {
            let piece = piece(n);
            if text.len() + piece.len() > CONFIG_BYTES_MAX {
                return text;
            }
            text.push_str(&piece);
        }
        text
    };
    let files = [
        filled(&|n| format!("k{n}=1\n")),
        filled(&|_| "[[worker]]\n".to_owned()),
        filled(&|n| format!("[[worker]]\ncore={n}\n")),
        filled(&|n| format!("[s{n}]\n")),
        filled(&|_| "[".to_owned()),
        filled(&|_| "\n".to_owned()),
        filled(&|_| "a.".to_owned()),
        filled(&|n| format!("a.b{n}.c=1\n")),
        format!("a={}", "[".repeat(CONFIG_BYTES_MAX - 2)),
        format!("a={}", "{a=".repeat(CONFIG_BYTES_MAX / 4)),
        format!("{}=1", "a".repeat(CONFIG_BYTES_MAX - 2)),
        format!("a=\"{}", "x".repeat(CONFIG_BYTES_MAX - 3)),
        format!(
            "[[worker]]\ncore=0\ndevices=[{}]",
            "\"rxe0\",".repeat(CONFIG_BYTES_MAX / 8)
        ),
        format!("[pool]\nslots={}", "9".repeat(CONFIG_BYTES_MAX / 2)),
    ];
    for text in files {
        let begin: String = text.chars().take(30).collect();
        let start = Instant::now();
        assert!(plan_of(&text, &host).is_err(), "{begin}");
        let taken = start.elapsed();
        assert!(taken < Duration::from_secs(30), "{begin}: {taken:?}");
        println!("{taken:>12?}  {begin:?}");
    }
}
