//! From the command line to a checked plan.

use crate::cli::HostArgs;
use spinwire::config::{Config, Host, Plan, Side};
use spinwire::fabric::Url;
use spinwire::limits::{INLINE_MAX_BYTES, QUEUE_DEPTH_MAX, SLOT_BYTES_MAX, SLOT_BYTES_MIN};
use spinwire::types::CoreId;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Bytes that a pool without a core map takes at most.
const POOL_BYTES_MAX: u32 = 256 << 20;

/// What a program needs of pools and queues. Without a core map they are made so; one must have it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fit {
    /// Bytes of a message.
    pub(crate) size: Option<u32>,
    /// CQs are just as deep as so many need; a core map says that itself.
    pub(crate) connections: Option<u32>,
    pub(crate) send_depth: Option<u32>,
    pub(crate) recv_depth: Option<u32>,
}

/// The plan for one side. `url` is where it listens or connects: its devices are taken.
pub(crate) fn plan(args: &HostArgs, side: Side, fit: &Fit, url: &Url) -> Result<Plan, Failure> {
    let Fit {
        size, connections, ..
    } = *fit;
    let host = Host::probe_for(url)?;
    let mut plan = match &args.config {
        Some(path) => {
            let config = Config::from_path(path)?;
            mapped(&config, url, &host, || Host::probe().ok())?
        }
        None => {
            let mut plan = Config::default_for(&host, side)?;
            choose_cores(&mut plan, args, &host)?;
            if let Some(size) = size {
                fit_buffers(&mut plan, size)?;
            }
            fit_depths(&mut plan, fit)?;
            if let Some(connections) = connections {
                fit_queues(&mut plan, connections)?;
            }
            plan
        }
    };
    if let Some(inline) = args.inline {
        if inline > INLINE_MAX_BYTES {
            return Err(format!("--inline {inline}: at most {INLINE_MAX_BYTES}").into());
        }
        for lane in plan.workers.iter_mut().flat_map(|w| &mut w.lanes) {
            lane.inline_bytes = inline;
        }
    }
    if let Some(size) = size.filter(|s| *s > plan.pool.slot_bytes) {
        let slot = plan.pool.slot_bytes;
        return Err(format!("--size {size}: [pool] slot_bytes = {slot} is less; raise it").into());
    }
    for lane in plan.workers.iter().flat_map(|w| &w.lanes) {
        if let Some(depth) = fit.send_depth.filter(|d| *d > lane.send_depth) {
            let (has, device) = (lane.send_depth, &lane.device);
            let text = "raise [queues] send_depth, or name a smaller --depth";
            return Err(format!("--depth {depth}: {device} has {has}; {text}").into());
        }
    }
    Ok(plan)
}

/// The plan of a core map, whose workers take the devices that lead to `url` where they name none.
fn mapped(
    config: &Config,
    url: &Url,
    host: &Host,
    with_all_devices: impl FnOnce() -> Option<Host>,
) -> Result<Plan, Failure> {
    let faults = match config.check(host) {
        Ok(plan) => return Ok(plan),
        Err(faults) => faults,
    };
    // Devices that lead elsewhere are not missing, and all other faults are the same.
    if !config.names_devices() || host.devices.is_empty() {
        return Err(faults.into());
    }
    let Some(all) = with_all_devices() else {
        return Err(faults.into());
    };
    let elsewhere = config.check(&all)?;
    let lanes = elsewhere.workers.iter().flat_map(|w| &w.lanes);
    let devices: Vec<&str> = lanes.map(|lane| lane.device.as_str()).collect();
    let (path, wrong) = (config.origin(), devices.join(", "));
    let right: Vec<&str> = host.devices.iter().map(|d| d.name.as_str()).collect();
    let right = right.join("\", \"");
    Err(format!(
        "{path} names {wrong} in [[worker]] devices, which {url} is not reached by: leave the key out, \
         or write devices = [\"{right}\"]"
    )
    .into())
}

fn choose_cores(plan: &mut Plan, args: &HostArgs, host: &Host) -> Result<(), Failure> {
    let find = |option: &str, number: usize| {
        CoreId::new(number)
            .filter(|core| host.cores.contains(core))
            .ok_or_else(|| {
                let cores: Vec<String> = host.cores.iter().map(ToString::to_string).collect();
                format!(
                    "{option} {number}: this process may use the cores {}",
                    cores.join(", ")
                )
            })
    };
    if let Some(number) = args.worker_core {
        let core = find("--worker-core", number)?;
        plan.workers.iter_mut().for_each(|w| w.core = Some(core));
        if args.control_core.is_none() && plan.control.core == Some(core) {
            plan.control.core = host.cores.iter().copied().find(|other| *other != core);
        }
    }
    if let Some(number) = args.control_core {
        plan.control.core = Some(find("--control-core", number)?);
    }
    let control = plan.control.core;
    if control.is_some() && plan.workers.iter().any(|w| w.core == control) {
        let core = control.map_or(0, CoreId::number);
        let message = "is for control and a worker: name another with --control-core";
        return Err(format!("core {core} {message}").into());
    }
    Ok(())
}

/// Queues of the depths asked for, and slots enough for them.
fn fit_depths(plan: &mut Plan, fit: &Fit) -> Result<(), Failure> {
    for lane in plan.workers.iter_mut().flat_map(|w| &mut w.lanes) {
        for (option, depth, has) in [
            ("--depth", fit.send_depth, &mut lane.send_depth),
            ("--recv-depth", fit.recv_depth, &mut lane.recv_depth),
        ] {
            let Some(depth) = depth else { continue };
            if depth > QUEUE_DEPTH_MAX {
                return Err(format!("{option} {depth}: at most {QUEUE_DEPTH_MAX}").into());
            }
            *has = depth;
        }
        lane.cq_depth = lane
            .cq_depth
            .max(lane.connections_max * (lane.send_depth + lane.recv_depth));
        // Receives, answers and what is under way.
        plan.pool.slots = plan.pool.slots.max(lane.recv_depth.saturating_mul(2));
        plan.pool.slots_max = plan.pool.slots_max.max(plan.pool.slots);
    }
    Ok(())
}

/// CQs just as deep as so many connections need.
fn fit_queues(plan: &mut Plan, connections: u32) -> Result<(), Failure> {
    for lane in plan.workers.iter_mut().flat_map(|w| &mut w.lanes) {
        if connections > lane.connections_max {
            let most = lane.connections_max;
            let device = &lane.device;
            let text = "take a core map for more ([queues] connections_max)";
            return Err(format!("--connections {connections}: {most} on {device}; {text}").into());
        }
        lane.connections_max = connections;
        lane.cq_depth = connections * (lane.send_depth + lane.recv_depth);
    }
    Ok(())
}

/// Buffers of just the size that messages have, so that those in use stay in the cache, and as many
/// as a bounded pool has room for.
fn fit_buffers(plan: &mut Plan, size: u32) -> Result<(), Failure> {
    if size > SLOT_BYTES_MAX {
        return Err(format!("{size} bytes: a message has at most {SLOT_BYTES_MAX}").into());
    }
    plan.pool.slot_bytes = size.next_multiple_of(SLOT_BYTES_MIN).max(SLOT_BYTES_MIN);
    let slots = (POOL_BYTES_MAX / plan.pool.slot_bytes).clamp(8, plan.pool.slots.max(8));
    (plan.pool.slots, plan.pool.slots_max) = (slots, slots);
    for lane in plan.workers.iter_mut().flat_map(|w| &mut w.lanes) {
        lane.recv_depth = lane.recv_depth.min(slots / 4).max(1);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use spinwire::fabric::shm;
    use spinwire::types::{DeviceLimits, Transport};

    fn rxe() -> DeviceLimits {
        DeviceLimits {
            name: "rxe0".into(),
            transport: Transport::Ib,
            ..shm::limits()
        }
    }

    fn host(devices: &[DeviceLimits]) -> Host {
        let cores = (0..2).filter_map(CoreId::new);
        Host::from_parts(cores, devices.to_vec(), 0, [].into())
    }

    /// The devices of the plan for an address, on a host with `rxe0`.
    fn lanes(devices: &str, url: &str) -> Result<Vec<String>, String> {
        lanes_with(&rxe(), devices, url)
    }

    fn lanes_with(rxe: &DeviceLimits, devices: &str, url: &str) -> Result<Vec<String>, String> {
        let text = format!("[[worker]]\ncore = 1\n{devices}");
        let config = Config::from_text(&text, "map.toml").expect("TOML");
        let url: Url = url.parse().expect("an address");
        let led_to = match url {
            Url::Shm(_) => host(&[shm::limits()]),
            Url::Rdma { .. } => host(std::slice::from_ref(rxe)),
        };
        let all = || Some(host(&[rxe.clone(), shm::limits()]));
        let plan = mapped(&config, &url, &led_to, all).map_err(|error| error.to_string())?;
        let lanes = plan.workers.into_iter().flat_map(|w| w.lanes);
        Ok(lanes.map(|lane| lane.device).collect())
    }

    #[test]
    fn the_address_chooses_devices_that_a_core_map_does_not_name() {
        assert_eq!(lanes("", "shm://name"), Ok(vec!["shm0".into()]));
        assert_eq!(lanes("", "rdma://h:1"), Ok(vec!["rxe0".into()]));
        let named = "devices = [\"shm0\"]\n";
        assert_eq!(lanes(named, "shm://name"), Ok(vec!["shm0".into()]));
    }

    #[test]
    fn a_map_that_names_no_device_has_named_no_wrong_one() {
        let down = DeviceLimits {
            active: false,
            ..rxe()
        };
        let error = lanes_with(&down, "", "rdma://h:1").expect_err("its link is down");
        assert!(
            error.contains("needs a device with an active port"),
            "{error}"
        );
        assert!(!error.contains("names shm0"), "{error}");
    }

    #[test]
    fn devices_that_lead_elsewhere_are_told_from_missing_ones() {
        let error = lanes("devices = [\"rxe0\"]\n", "shm://name").expect_err("elsewhere");
        assert!(error.starts_with("map.toml names rxe0"), "{error}");
        assert!(error.contains("devices = [\"shm0\"]"), "{error}");
        let error = lanes("devices = [\"shm0\"]\n", "rdma://h:1").expect_err("elsewhere");
        assert!(error.contains("devices = [\"rxe0\"]"), "{error}");
        let error = lanes("devices = [\"mlx5_0\"]\n", "shm://name").expect_err("missing");
        assert!(error.contains("there is rxe0, shm0"), "{error}");
        let both = "devices = [\"rxe0\", \"shm0\"]\n";
        let error = lanes(both, "shm://name").expect_err("both");
        assert!(error.contains("devices of one fabric"), "{error}");
    }
}
