//! Exactly once, shown in two acts.
//!
//! The first: orders over HTTP, each led by a saga through services that each have a database,
//! while all of them are killed at random; in the end the books balance. The second: messages
//! between two services, in order, with rolled back and long transactions and copies.
//!
//! `demo [sagas|messages] [--orders N] [--sabotage KIND]`. Starts a PostgreSQL and a nats-server of
//! its own, unless `DATABASE_URL` and `NATS_URL` name some; then it works in databases and a stream
//! of its own there and deletes them in the end. Exit code 0 when the books agree, 1 when they do
//! not.
#![expect(clippy::print_stdout, reason = "the demo talks to the person who runs it")]

mod clients;
mod copies;
mod fulfilment;
mod processes;
mod report;
mod run;
mod servers;
mod trouble;
mod watchdog;

use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use oncebox_examples::{audit::Sabotage, config, fulfilment::ledger::Fraud};

use servers::Servers;

const USAGE: &str = "usage: demo [--orders N] | demo sagas [--orders N] [--sabotage lose|double|keep] | demo messages \
     [--orders N] [--sabotage lose|double|reorder]";
const ORDERS_DEFAULT: usize = 2_000;
/// Orders of the second act, when both are played: it needs fewer.
const ORDERS_SECOND: usize = 400;
const ORDERS_MIN: usize = 100;

/// The arguments.
#[derive(Clone, Copy, Debug)]
struct Acts {
    sagas: Option<(usize, Option<Fraud>)>,
    messages: Option<Options>,
}

/// The arguments of the second act.
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
    let outcome = match acts(std::env::args().skip(1)) {
        Ok(acts) => Box::pin(run(acts)).await,
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

/// Runs the demo; true when the books agree.
async fn run(acts: Acts) -> Result<bool> {
    println!("starting servers ...");
    let mut servers = Servers::start().await?;
    // However it ends, dropping the acts has ended every process of theirs.
    let outcome = tokio::select! {
        outcome = Box::pin(play(&mut servers, acts)) => outcome,
        name = config::stop_signal() => name.and_then(|name| bail!("stopped by {name}")),
    };
    let logs = processes::log_directory(&servers)?;
    servers.clean_up().await?;
    match outcome {
        Ok(true) => std::fs::remove_dir_all(&logs)?,
        Ok(false) | Err(_) => println!("the logs of all processes are in {}", logs.display()),
    }
    outcome
}

async fn play(servers: &mut Servers, acts: Acts) -> Result<bool> {
    let mut is_right = true;
    if let Some((orders, fraud)) = acts.sagas {
        is_right &= Box::pin(fulfilment::run(servers, orders, fraud)).await?;
    }
    if let Some(options) = acts.messages {
        is_right &= Box::pin(run::run(servers, options)).await?;
    }
    Ok(is_right)
}

fn acts(arguments: impl Iterator<Item = String>) -> Result<Acts> {
    let mut arguments = arguments.peekable();
    let act = arguments.next_if(|first| !first.starts_with("--"));
    let (mut orders, mut sabotage) = (None, None);
    while let Some(name) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--orders" => orders = Some(value.parse::<usize>().context("read --orders, a number")?),
            "--sabotage" => sabotage = Some(value),
            _ => bail!(USAGE),
        }
    }
    ensure!(orders.is_none_or(|orders| orders >= ORDERS_MIN), "--orders is at least {ORDERS_MIN}");
    let first = orders.unwrap_or(ORDERS_DEFAULT);
    let acts = match (act.as_deref(), sabotage) {
        (None, None) => Acts {
            sagas: Some((first, None)),
            messages: Some(Options { orders: first.min(ORDERS_SECOND), sabotage: None }),
        },
        (Some("sagas"), kind) => {
            let fraud = kind.map(|kind| Fraud::from_name(&kind).context(USAGE)).transpose()?;
            Acts { sagas: Some((first, fraud)), messages: None }
        }
        (Some("messages"), kind) => {
            let sabotage = kind.map(|kind| Sabotage::from_name(&kind).context(USAGE)).transpose()?;
            Acts { sagas: None, messages: Some(Options { orders: first, sabotage }) }
        }
        _ => bail!(USAGE),
    };
    Ok(acts)
}
