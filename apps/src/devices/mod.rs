//! `spinwire devices`: RDMA devices, and the shared memory that every host has.

#[cfg(feature = "verbs")]
mod rdma;

use crate::cli::DevicesArgs;
use crate::setup::Failure;
use serde_json::{Value, json};
use spinwire::fabric::shm;
use spinwire::types::DeviceLimits;
use std::fmt::Write as _;
use std::io::Write as _;

/// One device, for programs and for people.
struct Listed {
    json: Value,
    text: String,
}

pub(crate) fn run(args: &DevicesArgs) -> Result<(), Failure> {
    let mut devices = rdma_devices();
    devices.push(shared_memory()?);
    let text = if args.json {
        let all: Vec<Value> = devices.into_iter().map(|d| d.json).collect();
        serde_json::to_string_pretty(&all)? + "\n"
    } else {
        devices.into_iter().map(|d| d.text).collect()
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

/// What there is; the rest is told on standard error, as shared memory is there in any case.
#[cfg(feature = "verbs")]
fn rdma_devices() -> Vec<Listed> {
    match rdma::list() {
        Ok(devices) => {
            if devices.is_empty() {
                eprintln!("no RDMA device: see `rdma link`; Soft-RoCE needs no hardware:");
                eprintln!("  modprobe rdma_rxe && rdma link add rxe0 type rxe netdev DEV");
            }
            devices
        }
        Err(error) => {
            eprintln!("no RDMA device: {error}");
            Vec::new()
        }
    }
}

#[cfg(not(feature = "verbs"))]
fn rdma_devices() -> Vec<Listed> {
    eprintln!("RDMA devices are not looked for: this spinwire was built without verbs");
    Vec::new()
}

/// In the form that RDMA devices have.
fn shared_memory() -> Result<Listed, Failure> {
    let limits = shm::limits();
    let mut text = format!("{}  shared memory\n", limits.name);
    text.push_str("  for processes of this host: shm://NAME, one engine for it alone\n");
    text.push_str(&limits_line(&limits));
    let (none, name) = (Vec::<Value>::new(), limits.name.clone());
    let limits = serde_json::to_value(limits)?;
    let json = json!({
        "name": name, "limits": limits, "error": null, "ports": none, "gids": none,
    });
    Ok(Listed { json, text })
}

fn limits_line(l: &DeviceLimits) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "  limits  {} QPs, {} work requests a queue, {} SGE, {} CQs of {} entries, READs and \
         atomics {} out and {} in, regions of {} B",
        l.qp_max,
        l.qp_depth_max,
        l.sge_max,
        l.cq_max,
        l.cq_depth_max,
        l.rd_atomic_initiator_max,
        l.rd_atomic_responder_max,
        l.mr_bytes_max
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_listed_like_any_device() {
        let listed = shared_memory().expect("serializes");
        assert!(
            listed.text.starts_with("shm0  shared memory\n"),
            "{}",
            listed.text
        );
        assert!(listed.text.contains("\n  limits  "), "{}", listed.text);
        assert_eq!(listed.json["name"], "shm0");
        assert_eq!(listed.json["limits"]["transport"], "shm");
        assert_eq!(listed.json["ports"], json!([]));
    }
}
