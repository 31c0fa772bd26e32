//! `spinwire serve`: the other end of every measurement of `bench`.
//!
//! ```text
//!  server (one a worker, a session a connection) ─► echo: messages go back
//!                                                ├► writes: WRITEs are answered by WRITEs
//!                                                └► messages counted, or memory offered, and no more
//! ```

mod echo;
mod server;

use crate::cli::{Op, ServeArgs};
use crate::setup::{Failure, Fit, plan};
pub(crate) use server::Server;
use spinwire::Engine;
use spinwire::config::Side;
use spinwire::control::{Offer, Verdict, Welcome};
use spinwire::sys::signal::StopSignal;
use std::io::Write;

/// Largest message where nothing is said: what `bench --mode bandwidth` sends.
const SIZE_MAX_DEFAULT: u32 = 64 << 10;

/// Strangers get no access to memory, a `bench` what its operation needs.
pub(crate) fn welcome() -> Welcome {
    Welcome::each(|request| {
        let mut offer = Offer::default();
        if let Some(op) = Op::marked(request.private_data) {
            offer.access = op.access();
        }
        Verdict::Accept(offer)
    })
}

pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let mapped = args.host.config.is_some();
    let fit = Fit {
        size: args.size_max.or((!mapped).then_some(SIZE_MAX_DEFAULT)),
        connections: args.connections,
        recv_depth: args.recv_depth,
        ..Fit::default()
    };
    let plan = plan(&args.host, Side::Server, &fit)?;
    // Before any thread: they inherit the mask.
    let stop = StopSignal::install()?;
    let engine = Engine::start(&plan, Server::new)?;
    let at = engine.listen_with(&args.listen, welcome())?;
    for worker in engine.grants() {
        tracing::info!(?worker, "granted");
    }
    println!("listening on {at}; ends with Ctrl-C");
    std::io::stdout().flush()?;
    let left = engine.run_until(&stop)?;
    if left.is_empty() {
        Ok(())
    } else {
        Err(format!("left behind: {left:?}").into())
    }
}
