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
use spinwire::fabric::PrivateData;
use spinwire::sys::signal::StopSignal;
use spinwire::types::Access;
use std::io::Write;

/// Largest message where nothing is said: what `bench --mode bandwidth` sends.
const SIZE_MAX_DEFAULT: u32 = 64 << 10;

pub(crate) fn welcome() -> Welcome {
    Welcome::each(|request| Verdict::Accept(offer(request.private_data)))
}

/// Strangers get no access to memory, a `bench` what its operation needs.
fn offer(private_data: &PrivateData) -> Offer {
    Offer {
        access: Op::marked(private_data).map_or(Access::NONE, Op::access),
        ..Offer::default()
    }
}

pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let mapped = args.host.config.is_some();
    let fit = Fit {
        size: args.size_max.or((!mapped).then_some(SIZE_MAX_DEFAULT)),
        connections: args.connections,
        recv_depth: args.recv_depth,
        ..Fit::default()
    };
    let plan = plan(&args.host, Side::Server, &fit, &args.listen)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_allows_what_its_operation_needs_and_no_more() {
        for (op, access) in [
            (Op::Send, Access::NONE),
            (Op::Write, Access::REMOTE_WRITE),
            (Op::Read, Access::REMOTE_READ),
            (Op::Cas, Access::REMOTE_ATOMIC),
            (Op::Faa, Access::REMOTE_ATOMIC),
        ] {
            assert_eq!(offer(&op.mark()).access, access, "{op:?}");
        }
        for stranger in [&b""[..], b"swbench\x01", b"hello"] {
            assert_eq!(offer(&PrivateData::received(stranger)).access, Access::NONE);
        }
    }
}
