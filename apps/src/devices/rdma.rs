//! RDMA devices with their ports and GIDs.

use super::{Listed, limits_line};
use crate::setup::Failure;
use spinwire::fabric::verbs::{DeviceReport, choose, inventory};
use spinwire::types::Transport;
use std::fmt::Write as _;

pub(super) fn list() -> Result<Vec<Listed>, Failure> {
    let listed = |device: DeviceReport| -> Result<Listed, Failure> {
        let (json, text) = (serde_json::to_value(&device)?, show(&device));
        Ok(Listed { json, text })
    };
    inventory()?.into_iter().map(listed).collect()
}

fn show(device: &DeviceReport) -> String {
    let DeviceReport {
        name,
        limits,
        error,
        ports,
        gids,
    } = device;
    let kind = limits.as_ref().map_or("", |l| match l.transport {
        Transport::Iwarp => "iWARP",
        Transport::Shm => "shared memory",
        Transport::Ib if ports.iter().any(|p| p.link_layer == "Ethernet") => "RoCE",
        Transport::Ib => "InfiniBand",
    });
    let node = limits
        .as_ref()
        .and_then(|l| l.numa_node)
        .map_or(String::new(), |n| format!(", NUMA node {n}"));
    let mut text = format!("{name}  {kind}{node}\n");
    if let Some(error) = error {
        let _ = writeln!(text, "  {error}");
    }
    for p in ports {
        let _ = writeln!(
            text,
            "  port {}  {}  {}  MTU {} of {} B  messages up to {} B",
            p.number,
            p.state,
            p.link_layer,
            p.active_mtu_bytes,
            p.max_mtu_bytes,
            p.message_bytes_max
        );
        let best = choose(gids, p.number, None).map(|(gid, _)| gid.index);
        for g in gids.iter().filter(|g| g.port == p.number) {
            let netdev = g.netdev.as_deref().unwrap_or("-");
            let mark = if best == Some(g.index) {
                "  preferred"
            } else {
                ""
            };
            let _ = writeln!(
                text,
                "    GID {:>3}  {}  {}  {}{mark}",
                g.index,
                g.address(),
                g.kind,
                netdev
            );
        }
    }
    if let Some(l) = limits {
        text.push_str(&limits_line(l));
    }
    text
}
