//! Two minutes of chaos: orders are written, relayed, and handled in every mode of the inbox by
//! processes of their own, which are killed, suspended past their leases and cut off at COMMIT,
//! while each message comes three times and in any order, and a payment gateway loses answers. Some
//! orders are led by sagas. Then every order, effect, payment and saga is counted.
//!
//! `chaos [--seconds N] [--seed N] [--sabotage]`. Starts servers of its own. With `--beside
//! DATABASE_URL NATS_URL` it works on servers and relays of another program, which harms them as it
//! likes, and SIGTERM ends the trouble early. Exit code 0 when all
//! was done exactly once and the chaos was chaos, else 1. With `--sabotage` keys are forgotten now
//! and then, as by a consumer without an inbox, and the exit code is 0 when the count shows it in
//! every mode.
//!
//! The seed decides about the faults, their victims and their times; no two runs of a machine are
//! the same.
#![expect(clippy::print_stdout, reason = "the chaos talks to the person who runs it")]

mod audit;
mod books;
mod consume;
mod copies;
mod counted;
mod member;
mod order;
mod report;
mod run;
mod sagas;
mod stage;

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail, ensure};

const USAGE: &str = "usage: chaos [--seconds N] [--seed N] [--sabotage] [--beside DATABASE_URL NATS_URL]";
const SECONDS_DEFAULT: u64 = 120;
const SECONDS_MAX: u64 = 24 * 3600;

/// The arguments.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) duration: Duration,
    pub(crate) seed: u64,
    /// Break the promise, to see whether that is noticed.
    pub(crate) is_sabotage: bool,
    pub(crate) beside: Option<Beside>,
}

/// Servers that another program has started, with an outbox, and relays of its own.
#[derive(Clone, Debug)]
pub(crate) struct Beside {
    pub(crate) database_url: String,
    pub(crate) nats_url: String,
}

#[tokio::main]
#[expect(clippy::print_stderr, reason = "the chaos talks to the person who runs it")]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.first().map(String::as_str) {
        Some("consume") => consume::consume(&arguments[1..]).await.map(|()| true),
        _ => match options(arguments) {
            Ok(options) => Box::pin(run::run(options)).await,
            Err(error) => Err(error),
        },
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("chaos: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn options(arguments: Vec<String>) -> Result<Options> {
    let mut arguments = arguments.into_iter();
    let (mut seconds, mut seed, mut is_sabotage) = (SECONDS_DEFAULT, u64::from(fastrand::u32(..)), false);
    let mut beside = None;
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{name} needs a value"));
        let number = |value: String| value.parse::<u64>().with_context(|| format!("read {name}, a number"));
        match name.as_str() {
            "--seconds" => seconds = number(value()?)?,
            "--seed" => seed = number(value()?)?,
            "--beside" => beside = Some(Beside { database_url: value()?, nats_url: value()? }),
            "--sabotage" => is_sabotage = true,
            _ => bail!("{USAGE}"),
        }
    }
    ensure!((1..=SECONDS_MAX).contains(&seconds), "--seconds is not 1 to {SECONDS_MAX}");
    Ok(Options { duration: Duration::from_secs(seconds), seed, is_sabotage, beside })
}
