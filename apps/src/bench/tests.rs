//! Every operation in every mode between two engines of one process, on the fabric without a device.

use super::client::{Client, Measured};
use super::job::{Job, Until};
use super::offer;
use crate::cli::{Mode, Op};
use crate::serve::{Server, welcome};
use clap::ValueEnum;
use spinwire::Engine;
use spinwire::config::{
    ConnectionPlan, ControlPlan, LanePlan, Plan, PoolPlan, ShmPlan, WorkerPlan,
};
use spinwire::control::Offer;
use spinwire::fabric::Url;
use spinwire::fabric::pair::{Hub, Pair};
use spinwire::memory::HugepagePolicy;
use spinwire::types::IdlePolicy;
use std::sync::mpsc;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const SLOT_BYTES: u32 = 4096;

fn plan(send_depth: u32, recv_depth: u32) -> Plan {
    let lane = LanePlan {
        device: "pair0".into(),
        cq_depth: 4 * (send_depth + recv_depth),
        send_depth,
        recv_depth,
        inline_bytes: 0,
        shared_recv_depth: 0,
        connections_max: 4,
    };
    Plan {
        control: ControlPlan { core: None },
        workers: vec![WorkerPlan {
            core: None,
            idle: IdlePolicy::Yield,
            lanes: vec![lane],
        }],
        pool: PoolPlan {
            slots: 256,
            slots_max: 256,
            slot_bytes: SLOT_BYTES,
            hugepages: HugepagePolicy::Off,
        },
        connection: ConnectionPlan {
            resolve_timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(5),
            drain_deadline: Duration::from_secs(2),
            retry_count: 7,
            // The first SEND without a receive ends the connection.
            rnr_retry_count: 0,
        },
        shm: ShmPlan::default(),
    }
}

fn job(op: Op, mode: Mode, size: u32) -> Job {
    let (depth, post_list) = match mode {
        Mode::Latency => (1, 1),
        Mode::Rate => (32, 8),
        Mode::Bandwidth => (5, 3),
    };
    Job {
        op,
        mode,
        size,
        depth,
        post_list,
        span: 0,
        warmup: 7,
        until: Until::Count(100),
    }
}

/// Runs jobs one after the other against one server with `receives` for each connection.
fn measure(
    receives: u32,
    jobs: &[Job],
    offer: impl Fn(Job) -> Offer,
) -> Vec<Result<Measured, String>> {
    let hub = Hub::new();
    let at: Url = "shm://bench".parse().expect("a URL");
    let there = Pair::open(&hub).expect("a fabric");
    let server = Engine::start_on(there, &plan(16, receives), Server::new).expect("a server");
    server.listen_with(&at, welcome()).expect("listens");
    let results = jobs.iter().map(|job| {
        let job = *job;
        let (sender, result) = mpsc::channel();
        let here = Pair::open(&hub).expect("a fabric");
        let client = Engine::start_on(here, &plan(32, 16), move |worker| {
            Client::new(job, &worker, sender.clone())
        });
        let client = client.expect("a client");
        client.connect(&at, offer(job)).expect("connects");
        let measured = result.recv_timeout(PATIENCE).expect("a result in time");
        let left = client.shutdown().expect("ends");
        assert!(left.is_empty(), "{job:?}: {left:?}");
        measured
    });
    let results = results.collect();
    let left = server.shutdown().expect("ends");
    assert!(left.is_empty(), "{left:?}");
    results
}

#[test]
fn every_operation_in_every_mode_does_what_was_asked_for() {
    let jobs: Vec<Job> = Op::value_variants()
        .iter()
        .flat_map(|op| Mode::value_variants().iter().map(|mode| (*op, *mode)))
        .map(|(op, mode)| {
            let atomic = matches!(op, Op::Cas | Op::Faa);
            job(op, mode, if atomic { 8 } else { 1000 })
        })
        .collect();
    for (result, job) in measure(16, &jobs, offer).into_iter().zip(&jobs) {
        let measured = result.unwrap_or_else(|error| panic!("{job:?}: {error}"));
        assert_eq!(measured.operations, 100, "{job:?}");
        assert!(measured.seconds > 0.0, "{job:?}");
        let latencies = measured.times.map(|times| times.count());
        assert_eq!(latencies, (job.mode == Mode::Latency).then_some(100));
    }
}

#[test]
fn a_receiver_with_few_receives_is_not_overrun() {
    for receives in [1, 2, 3] {
        let jobs = [
            job(Op::Send, Mode::Rate, 64),
            job(Op::Send, Mode::Bandwidth, 64),
        ];
        for result in measure(receives, &jobs, offer) {
            assert_eq!(result.map(|m| m.operations), Ok(100), "{receives} receives");
        }
    }
}

#[test]
fn the_end_of_the_size_is_what_a_buffer_has() {
    let fits = job(Op::Write, Mode::Latency, SLOT_BYTES);
    let too_long = job(Op::Read, Mode::Rate, SLOT_BYTES + 1);
    let results = measure(16, &[fits, too_long, fits], offer);
    let errors: Vec<Option<String>> = results.into_iter().map(Result::err).collect();
    assert_eq!((&errors[0], &errors[2]), (&None, &None));
    let error = errors[1].as_deref().expect("too long");
    assert!(error.contains("--size-max 4097"), "{error}");
}

#[test]
fn memory_is_for_the_operation_of_the_request_only() {
    // Says in the request that it will READ, and then asks to WRITE.
    let lie = |job: Job| Offer {
        private_data: Op::Read.mark(),
        ..offer(job)
    };
    let results = measure(16, &[job(Op::Write, Mode::Rate, 8)], lie);
    let error = results[0].as_ref().err().expect("refused");
    assert!(error.contains("does not offer"), "{error}");
}

#[test]
fn a_peer_that_does_not_measure_is_echoed() {
    let stranger = |job: Job| Offer {
        private_data: Offer::default().private_data,
        ..offer(job)
    };
    let results = measure(16, &[job(Op::Send, Mode::Latency, 8)], stranger);
    // Its ask came back, and that is no answer.
    let error = results[0].as_ref().err().expect("no server for it");
    assert!(error.contains("not understood"), "{error}");
}
