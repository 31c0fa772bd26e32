//! `spinwire serve`.

use crate::cli::ServeArgs;
use crate::echo::Echo;
use crate::setup::{Failure, plan};
use spinwire::Engine;
use spinwire::config::Side;
use spinwire::sys::signal::StopSignal;
use std::io::Write;

pub(crate) fn run(args: &ServeArgs) -> Result<(), Failure> {
    let plan = plan(&args.host, Side::Server, args.size_max, args.connections)?;
    // Before any thread: they inherit the mask.
    let stop = StopSignal::install()?;
    let engine = Engine::start(&plan, |_| Echo::default())?;
    let at = engine.listen(&args.listen)?;
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
