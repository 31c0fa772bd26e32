//! GIDs: read with their types and netdevs, and checked against what rdma_cm chose.
//!
//! rdma_cm picks the source GID by address. Several GIDs can share an address (RoCE v1 and v2, bonds,
//! containers), so what it picked is compared with what an operator would pick, and logged with the
//! reason: [`choose`] prefers the address asked for, then RoCE v2, then a routable address, then a
//! netdev that is there.
#![allow(unsafe_code, reason = "libibverbs is C")]

use super::cm::Id;
use rdma_sys::{
    IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, ibv_context, ibv_gid_entry,
    ibv_qp_attr, ibv_query_gid_table,
};
use serde::Serialize;
use std::fmt;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};

/// Kind of a GID, which decides the headers on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum GidKind {
    /// InfiniBand.
    #[serde(rename = "IB")]
    Ib,
    /// RoCE over Ethernet frames.
    #[serde(rename = "RoCE v1")]
    RoceV1,
    /// RoCE over UDP.
    #[serde(rename = "RoCE v2")]
    RoceV2,
    /// iWARP has no RoCE headers; its one GID is the MAC.
    #[serde(rename = "iWARP")]
    Iwarp,
    /// A kind that this version does not know.
    #[serde(rename = "unknown")]
    Unknown,
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ib => "IB",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
            Self::Iwarp => "iWARP",
            Self::Unknown => "unknown",
        })
    }
}

/// One entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gid {
    /// Port it belongs to.
    pub port: u8,
    /// Place in the port's table.
    pub index: u32,
    /// The 16 bytes, written as an IPv6 address.
    pub gid: Ipv6Addr,
    /// Kind.
    pub kind: GidKind,
    /// The Ethernet interface it stands for.
    pub netdev: Option<String>,
}

impl Gid {
    /// The IP address that the GID stands for, IPv4 unmapped.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.gid
            .to_ipv4_mapped()
            .map_or(IpAddr::V6(self.gid), IpAddr::V4)
    }

    /// Not link-local: it can cross a router.
    #[must_use]
    pub fn is_routable(&self) -> bool {
        self.gid.segments()[0] & 0xffc0 != 0xfe80
    }
}

const GIDS_MAX: usize = 1024;

/// Reads the GID table of a device; empty where the library or device has none.
pub(super) fn table(context: *mut ibv_context, iwarp: bool) -> Vec<Gid> {
    // SAFETY: zero is a valid ibv_gid_entry: bytes and integers.
    let blank: ibv_gid_entry = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut entries = vec![blank; GIDS_MAX];
    // SAFETY: ibv_query_gid_table requires a live context and room for the number of entries given.
    let n = unsafe { ibv_query_gid_table(context, entries.as_mut_ptr(), entries.len(), 0) };
    let Ok(n) = usize::try_from(n) else {
        return Vec::new();
    };
    entries[..n.min(GIDS_MAX)]
        .iter()
        .map(|e| {
            // SAFETY: every bit pattern is valid as bytes.
            let raw = unsafe { e.gid.raw };
            Gid {
                port: u8::try_from(e.port_num).unwrap_or(0),
                index: e.gid_index,
                gid: Ipv6Addr::from(raw),
                kind: match e.gid_type {
                    _ if iwarp => GidKind::Iwarp,
                    t if t == IBV_GID_TYPE_IB => GidKind::Ib,
                    t if t == IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
                    t if t == IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
                    _ => GidKind::Unknown,
                },
                netdev: interface_name(e.ndev_ifindex),
            }
        })
        .collect()
}

fn interface_name(index: u32) -> Option<String> {
    if index == 0 {
        return None;
    }
    let mut name = [0u8; libc::IF_NAMESIZE];
    // SAFETY: if_indextoname requires room for IF_NAMESIZE bytes.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    if found.is_null() {
        return None;
    }
    let end = name.iter().position(|b| *b == 0)?;
    String::from_utf8(name[..end].to_vec()).ok()
}

/// The GID that suits `address` best on `port`, and why.
#[must_use]
pub fn choose(gids: &[Gid], port: u8, address: Option<IpAddr>) -> Option<(&Gid, String)> {
    let rank = |g: &&Gid| {
        (
            address.is_some_and(|a| g.address() == a),
            matches!(g.kind, GidKind::RoceV2 | GidKind::Ib | GidKind::Iwarp),
            g.is_routable(),
            g.netdev.is_some(),
            std::cmp::Reverse(g.index),
        )
    };
    let best = gids
        .iter()
        .filter(|g| g.port == port && !g.gid.is_unspecified())
        .max_by_key(rank)?;
    let (matches, modern, routable, netdev, _) = rank(&best);
    let mut reasons = Vec::new();
    if matches {
        reasons.push("has the address asked for".into());
    }
    if modern {
        reasons.push(best.kind.to_string());
    }
    if routable {
        reasons.push("routable".into());
    }
    if let (true, Some(name)) = (netdev, &best.netdev) {
        reasons.push(format!("on {name}"));
    }
    Some((best, reasons.join(", ")))
}

/// Logs the GID that rdma_cm chose for a connection, and warns where an operator would not have.
pub(super) fn log_choice(context: *mut ibv_context, id: &Id, attr: &ibv_qp_attr) {
    if !tracing::enabled!(tracing::Level::INFO) {
        return;
    }
    let gids = table(context, false);
    let index = u32::from(attr.ah_attr.grh.sgid_index);
    let port = id.port();
    let Some(chosen) = gids.iter().find(|g| g.port == port && g.index == index) else {
        return;
    };
    let (kind, netdev) = (chosen.kind, chosen.netdev.as_deref().unwrap_or("none"));
    tracing::info!(port, index, gid = %chosen.gid, %kind, netdev, "GID chosen by rdma_cm");
    if let Some((best, why)) = choose(&gids, port, Some(chosen.address()))
        && best.index != chosen.index
    {
        tracing::warn!(
            best = best.index,
            why,
            "another GID has the same address and fits better"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u32, text: &str, kind: GidKind, netdev: Option<&str>) -> Gid {
        let gid = text.parse().expect("an address");
        Gid {
            port: 1,
            index,
            gid,
            kind,
            netdev: netdev.map(String::from),
        }
    }

    #[test]
    fn the_address_asked_for_wins_then_v2_then_routable() {
        let gids = [
            gid(0, "fe80::1", GidKind::RoceV1, Some("eth0")),
            gid(1, "fe80::1", GidKind::RoceV2, Some("eth0")),
            gid(2, "::ffff:10.0.0.1", GidKind::RoceV1, Some("eth0")),
            gid(3, "::ffff:10.0.0.1", GidKind::RoceV2, Some("eth0")),
            gid(4, "::ffff:10.0.0.2", GidKind::RoceV2, Some("eth1")),
        ];
        let asked = "10.0.0.1".parse().ok();
        assert_eq!(choose(&gids, 1, asked).expect("one").0.index, 3);
        assert_eq!(choose(&gids, 1, None).expect("one").0.index, 3);
        assert_eq!(choose(&gids[..2], 1, asked).expect("one").0.index, 1);
        assert!(choose(&gids, 2, asked).is_none());
        let (_, why) = choose(&gids, 1, asked).expect("one");
        assert_eq!(why, "has the address asked for, RoCE v2, routable, on eth0");
    }

    #[test]
    fn empty_entries_are_never_chosen() {
        assert!(choose(&[gid(0, "::", GidKind::RoceV2, None)], 1, None).is_none());
        assert!(choose(&[], 1, None).is_none());
    }

    #[test]
    fn addresses_are_unmapped() {
        assert_eq!(
            gid(0, "::ffff:10.9.0.1", GidKind::RoceV2, None)
                .address()
                .to_string(),
            "10.9.0.1"
        );
        assert!(!gid(0, "fe80::2861", GidKind::RoceV2, None).is_routable());
        assert!(gid(0, "2001:db8::1", GidKind::RoceV2, None).is_routable());
    }
}
