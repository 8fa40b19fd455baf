//! Exactly once, shown: two services, two databases, relays and consumers that are killed again and
//! again.
//!
//! `demo [--orders N] [--sabotage lose|double|reorder]`. Starts a PostgreSQL and a nats-server of
//! its own, unless `DATABASE_URL` and `NATS_URL` name some; then it works in two databases and a
//! stream of its own there and deletes them in the end. Exit code 0 when the books of the two
//! services agree, 1 when they do not.
#![expect(clippy::print_stdout, reason = "the demo talks to the person who runs it")]

mod clients;
mod copies;
mod processes;
mod report;
mod run;
mod servers;
mod trouble;
mod watchdog;

use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use oncebox_examples::audit::Sabotage;

const ORDERS_DEFAULT: usize = 2_000;
const ORDERS_MIN: usize = 100;

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// How many orders the clients place, those included that are rolled back.
    pub(crate) orders: usize,
    /// How the books are falsified before they are checked.
    pub(crate) sabotage: Option<Sabotage>,
}

#[tokio::main]
#[expect(clippy::print_stderr, reason = "the demo talks to the person who runs it")]
async fn main() -> ExitCode {
    let outcome = match options(std::env::args().skip(1)) {
        Ok(options) => Box::pin(run::run(options)).await,
        Err(error) => Err(error),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options> {
    let mut options = Options { orders: ORDERS_DEFAULT, sabotage: None };
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{name} needs a value"));
        match name.as_str() {
            "--orders" => options.orders = value()?.parse().context("read --orders, a number")?,
            "--sabotage" => {
                let kind = value()?;
                options.sabotage = Some(
                    Sabotage::from_name(&kind)
                        .with_context(|| format!("--sabotage is lose, double or reorder, not \"{kind}\""))?,
                );
            }
            _ => bail!("usage: demo [--orders N] [--sabotage lose|double|reorder]"),
        }
    }
    ensure!(options.orders >= ORDERS_MIN, "--orders is at least {ORDERS_MIN}");
    Ok(options)
}
