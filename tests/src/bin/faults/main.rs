//! The fault matrix: relays, consumers and both servers are killed, suspended, cut off and filled
//! up, while producers commit and relays deliver; then every message is counted.
//!
//! `faults [--only NAME] [--network-seconds N] [--publish pipelined|atomic]`, or
//! `faults --torture MINUTES` for everything at random, with a judge from outside, or
//! `faults --soak MESSAGES` for a steady load whose figures have to be flat. Starts servers of its
//! own for each scenario. Exit code 0 when nothing was lost, doubled or reordered in any scenario
//! and no relay used more memory than its bound, else 1.
#![expect(clippy::print_stdout, reason = "the matrix talks to the person who runs it")]

mod acting;
mod archive;
mod arrival;
mod beside;
mod broker;
mod calm;
mod cluster;
mod company;
mod consumer;
mod database;
mod databases;
mod evidence;
mod fault;
mod fleet;
mod judging;
mod leaf;
mod network;
mod power_loss;
mod report;
mod scenarios;
mod servers;
mod soak;
mod stage;
mod torture;
mod turning;
mod twin;

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use report::Row;
use tokio::time::Instant;

/// Tracks run side by side, the scenarios of a track one after the other: so they take about as
/// long as the longest scenario, `network`. Most of it is waiting, and two cores are enough.
const TRACKS: &[&[&str]] = &[
    &["network"],
    &["relay-hanging", "consumer-killed", "nats-busy", "databases"],
    &["relay-killed", "relay-suspended", "postgres", "nats-server", "cluster"],
    &["stream-full", "two-phase", "mute-subject", "two-outboxes", "rolling-deploy"],
    &[
        "reader-suspended",
        "leaf-node",
        "notify-queue",
        "unreadable-header",
        "subscription",
        "no-cursors",
        "power-loss",
    ],
];

const USAGE: &str = "usage: faults [--only NAME] [--network-seconds N] [--publish pipelined|atomic] \
                     [--torture MINUTES] [--soak MESSAGES]";

/// The arguments.
#[derive(Clone, Debug)]
struct Options {
    only: Option<String>,
    network: Duration,
    /// Relays publish in atomic batches.
    is_atomic: bool,
    /// Instead of the matrix.
    torture: Option<Duration>,
    /// Instead of the matrix, with this number of messages.
    soak: Option<u64>,
}

#[tokio::main]
#[expect(clippy::print_stderr, reason = "the matrix talks to the person who runs it")]
async fn main() -> ExitCode {
    let outcome = match options(std::env::args().skip(1)) {
        Ok(options) => Box::pin(run(options)).await,
        Err(error) => Err(error),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("faults: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options> {
    // The promise is two minutes at least.
    let network = Duration::from_secs(125);
    let mut options = Options { only: None, network, is_atomic: false, torture: None, soak: None };
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{name} needs a value"));
        match name.as_str() {
            "--only" => options.only = Some(value()?),
            "--network-seconds" => {
                let seconds = value()?.parse().context("read --network-seconds, a number")?;
                options.network = Duration::from_secs(seconds);
            }
            "--torture" => {
                let minutes: u64 = value()?.parse().context("read --torture, a number of minutes")?;
                options.torture = Some(Duration::from_secs(60 * minutes));
            }
            "--soak" => options.soak = Some(value()?.parse().context("read --soak, a number of messages")?),
            "--publish" => match value()?.as_str() {
                "pipelined" => options.is_atomic = false,
                "atomic" => options.is_atomic = true,
                other => bail!("--publish {other}: pipelined or atomic"),
            },
            _ => bail!("{USAGE}"),
        }
    }
    let known: Vec<&str> = TRACKS.concat();
    if let Some(only) = &options.only {
        ensure!(known.contains(&&**only), "--only is one of {}", known.join(", "));
    }
    Ok(options)
}

/// True when every count is right.
async fn run(options: Options) -> Result<bool> {
    if let Some(messages) = options.soak {
        return soak::run(messages).await;
    }
    let started = Instant::now();
    let tracks = if options.torture.is_some() { &[&["torture"][..]] } else { TRACKS };
    let running = tracks.iter().map(|track| run_track(track, &options, started));
    let rows: Vec<Row> = futures_util::future::join_all(running).await.concat();
    Ok(report::print(&rows, started.elapsed()))
}

async fn run_track(track: &[&'static str], options: &Options, started: Instant) -> Vec<Row> {
    let mut rows = Vec::new();
    for name in track.iter().filter(|name| options.only.as_deref().is_none_or(|only| only == **name)) {
        let say = report::Teller::new(name, started);
        rows.push(match scenarios::run(name, options, &say).await {
            Ok(row) => row,
            Err(error) => Row::broken(name, &error),
        });
    }
    rows
}
