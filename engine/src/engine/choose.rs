//! Which fabric an engine opens: the devices of its plan say so, and an address says which devices.
//!
//! ```text
//!  plan ── all lanes on shm0 ─────► Chosen::Shm         shm://NAME  ─► Host::probe_for: shm0 alone
//!       └─ all on RDMA devices ───► Chosen::Verbs       rdma://…    ─► the RDMA devices alone
//! ```
//! A core map that mixes them was refused by its check; a plan made by hand is refused here.
//! Imports config, fabric. Imported by the rest of engine.

use super::EngineError;
use crate::config::{Host, Plan, ShmPlan};
use crate::fabric::Url;
use crate::fabric::shm::{self, DEVICE, Settings};
use crate::types::DeviceLimits;

/// The fabric of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chosen {
    /// Shared memory.
    Shm,
    /// RDMA devices.
    #[cfg(feature = "verbs")]
    Verbs,
}

/// The one fabric that all lanes are on.
pub(super) fn choose(plan: &Plan) -> Result<Chosen, EngineError> {
    let devices = || plan.workers.iter().flat_map(|worker| &worker.lanes);
    let on_shm = devices().any(|lane| lane.device == DEVICE);
    match devices().find(|lane| lane.device != DEVICE) {
        Some(other) if on_shm => Err(EngineError::TwoFabrics {
            shm: DEVICE.into(),
            other: other.device.clone(),
        }),
        Some(other) => verbs(&other.device),
        None => Ok(Chosen::Shm),
    }
}

#[cfg(feature = "verbs")]
fn verbs(_device: &str) -> Result<Chosen, EngineError> {
    Ok(Chosen::Verbs)
}

#[cfg(not(feature = "verbs"))]
fn verbs(device: &str) -> Result<Chosen, EngineError> {
    Err(EngineError::NoVerbs {
        wanted: format!("device {device}"),
    })
}

/// What the plan says of shared memory; the rest is as usual.
pub(super) fn settings(plan: &ShmPlan) -> Settings {
    Settings {
        dir: plan.dir.clone(),
        uids: plan.uids.clone().unwrap_or_default(),
    }
}

impl Host {
    /// This host: cores, huge pages, the devices that rdma_cm can use, and shared memory. A host
    /// without RDMA devices, or without their libraries, has shared memory alone; the log says why.
    ///
    /// # Errors
    /// `/proc` or `/sys` cannot be read.
    pub fn probe() -> Result<Self, EngineError> {
        let mut devices = rdma_devices().unwrap_or_else(|error| {
            tracing::info!(%error, "no RDMA devices");
            Vec::new()
        });
        devices.push(shm::limits());
        Self::of(devices)
    }

    /// This host with the devices alone that lead to `url`, so that a worker which names no device
    /// takes those.
    ///
    /// # Errors
    /// As [`Host::probe`]; and for an address of an RDMA device the libraries or the kernel's part are
    /// missing, or this build has no verbs.
    pub fn probe_for(url: &Url) -> Result<Self, EngineError> {
        Self::of(match url {
            Url::Shm(_) => vec![shm::limits()],
            Url::Rdma { .. } if cfg!(feature = "verbs") => rdma_devices()?,
            Url::Rdma { .. } => {
                return Err(EngineError::NoVerbs {
                    wanted: url.to_string(),
                });
            }
        })
    }

    fn of(devices: Vec<DeviceLimits>) -> Result<Self, EngineError> {
        Self::with_devices(devices).map_err(EngineError::system("read this host's cores"))
    }
}

#[cfg(feature = "verbs")]
fn rdma_devices() -> Result<Vec<DeviceLimits>, EngineError> {
    Ok(crate::fabric::verbs::limits_of_all()?)
}

#[cfg(not(feature = "verbs"))]
fn rdma_devices() -> Result<Vec<DeviceLimits>, EngineError> {
    Ok(Vec::new())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::config::{Config, Side};

    fn plan(devices: &[&str]) -> Plan {
        let host = Host::of(vec![shm::limits()]).expect("this host has cores");
        let mut plan = Config::default_for(&host, Side::Server).expect("a plan on shared memory");
        let lane = plan.workers[0].lanes[0].clone();
        let named = |device: &&str| crate::config::LanePlan {
            device: (*device).into(),
            ..lane.clone()
        };
        plan.workers[0].lanes = devices.iter().map(named).collect();
        plan
    }

    #[test]
    fn the_devices_choose_the_fabric() {
        assert_eq!(choose(&plan(&[DEVICE])).ok(), Some(Chosen::Shm));
        let rdma = choose(&plan(&["rxe0", "siw0"]));
        #[cfg(feature = "verbs")]
        assert_eq!(rdma.ok(), Some(Chosen::Verbs));
        #[cfg(not(feature = "verbs"))]
        assert!(rdma.is_err_and(|error| error.to_string().contains("built without")));
    }

    #[test]
    fn two_fabrics_in_one_engine_are_refused_with_the_way_out() {
        let error = choose(&plan(&["rxe0", DEVICE])).expect_err("both");
        let text = error.to_string();
        assert!(text.contains("rxe0") && text.contains(DEVICE), "{text}");
        assert!(text.contains("an engine for each"), "{text}");
    }

    #[test]
    fn every_host_has_shared_memory() {
        let devices = Host::probe().expect("probes").devices;
        assert_eq!(devices.iter().filter(|d| d.name == DEVICE).count(), 1);
        let url = Url::Shm("name".into());
        let host = Host::probe_for(&url).expect("probes");
        assert_eq!(host.devices, [shm::limits()]);
        assert!(host.devices[0].active);
    }

    #[test]
    fn a_plan_says_who_may_meet_and_where() {
        let usual = settings(&ShmPlan::default());
        assert_eq!(usual.dir, Settings::default().dir);
        assert_eq!(usual.uids, Settings::default().uids);
        let own = settings(&ShmPlan {
            dir: Some("/tmp/mine".into()),
            uids: Some(vec![7]),
        });
        assert_eq!(own.dir.as_deref(), Some(std::path::Path::new("/tmp/mine")));
        assert_eq!(own.uids, [7]);
    }
}
