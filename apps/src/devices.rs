//! `spinwire devices`.

use crate::cli::DevicesArgs;
use crate::setup::Failure;
use spinwire::fabric::verbs::{DeviceReport, choose, inventory};
use spinwire::types::Transport;
use std::io::Write;

pub(crate) fn run(args: &DevicesArgs) -> Result<(), Failure> {
    let devices = inventory()?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&devices)?)?;
    } else if devices.is_empty() {
        writeln!(
            out,
            "no RDMA device: see `rdma link`; Soft-RoCE needs no hardware:"
        )?;
        writeln!(
            out,
            "  modprobe rdma_rxe && rdma link add rxe0 type rxe netdev DEV"
        )?;
    } else {
        for device in &devices {
            show(&mut out, device)?;
        }
    }
    Ok(())
}

fn show(out: &mut impl Write, device: &DeviceReport) -> std::io::Result<()> {
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
    writeln!(out, "{name}  {kind}{node}")?;
    if let Some(error) = error {
        writeln!(out, "  {error}")?;
    }
    for p in ports {
        writeln!(
            out,
            "  port {}  {}  {}  MTU {} of {} B  messages up to {} B",
            p.number,
            p.state,
            p.link_layer,
            p.active_mtu_bytes,
            p.max_mtu_bytes,
            p.message_bytes_max
        )?;
        let best = choose(gids, p.number, None).map(|(gid, _)| gid.index);
        for g in gids.iter().filter(|g| g.port == p.number) {
            let netdev = g.netdev.as_deref().unwrap_or("-");
            let mark = if best == Some(g.index) {
                "  preferred"
            } else {
                ""
            };
            writeln!(
                out,
                "    GID {:>3}  {}  {}  {}{mark}",
                g.index,
                g.address(),
                g.kind,
                netdev
            )?;
        }
    }
    if let Some(l) = limits {
        writeln!(
            out,
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
        )?;
    }
    Ok(())
}
