//! `bench`: how close Oncebox comes to the raw limits, each limit measured in the same run on the
//! same servers.
//!
//! `make bench` builds `oncebox` and `bench` with optimisation and runs this program. It starts a
//! PostgreSQL and a nats-server of its own, measures, prints a table and writes `results.json` into
//! `bench/` of the target directory. Arguments name the measurements to take: `drain trickle mixed
//! idle inbox drivers http enqueue saga delayed` by default, `fleet`, `databases`, `scale`,
//! `console`, `outage`, `pipeline`, `publish`, `loss`, `large`, `gate`, `growth` and `contracts`
//! besides. The environment sets the sizes, see [`config`]. `bench compare OLD NEW drain` takes
//! them with two programs by turns.
//!
//! Every ratio compares two things measured in turn within one round, so that a slow or noisy
//! machine moves both sides. Rounds take the two sides in opposite orders, so that drift favours
//! neither. The report has the median of the rounds. Every measurement also counts its work
//! (messages in the stream, rows in the table) and fails when the count is not the one it should
//! be: a benchmark of wrong work is worse than none.

mod added;
mod backends;
mod backlog;
mod batch;
mod compare;
mod config;
mod contracts;
mod console;
mod databases;
mod delayed;
mod drain;
mod drivers;
mod enqueue;
mod fleet;
mod gate;
mod growth;
mod http;
mod idle;
mod inbox;
mod inboxes;
mod large;
mod loss;
mod machine;
mod mixed;
mod outage;
mod pipeline;
mod publish;
mod reference;
mod relay;
mod report;
mod saga;
mod scale;
mod servers;
mod statistics;
mod traffic;
mod trickle;
mod workers;

use std::process::ExitCode;

use anyhow::Context;

use crate::{
    config::{Config, Measurement},
    report::Report,
    servers::Servers,
};

#[tokio::main]
async fn main() -> ExitCode {
    // Databases are dropped under the pools that were measured; each of their connections would say
    // so.
    tracing_subscriber::fmt()
        .with_env_filter("warn,bench=info,deadpool.postgres=error")
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false)
        .init();
    let config = match config::load() {
        Ok(config) => config,
        Err(error) => {
            tracing::error!("{error}");
            return ExitCode::from(64);
        }
    };
    match run(&config).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(config: &Config) -> anyhow::Result<()> {
    if let Some(pair) = &config.compare {
        return compare::run(pair, config).await;
    }
    let mut servers = Servers::start().await.context("start the servers")?;
    let mut report = Report::new(machine::describe(&servers).await?, config);
    for measurement in &config.measurements {
        tracing::info!("{measurement}: {} rounds", config.rounds);
        match measurement {
            Measurement::Drain => drain::measure(&servers, config, &mut report).await,
            Measurement::Trickle => trickle::measure(&servers, config, &mut report).await,
            Measurement::Mixed => mixed::measure(&servers, config, &mut report).await,
            Measurement::Saga => saga::measure(&servers, config, &mut report).await,
            Measurement::Delayed => delayed::measure(&servers, config, &mut report).await,
            Measurement::Fleet => fleet::measure(&servers, config, &mut report).await,
            Measurement::Databases => databases::measure(&servers, config, &mut report).await,
            Measurement::Idle => idle::measure(&servers, config, &mut report).await,
            Measurement::Inbox => measure_inbox(&servers, config, &mut report).await,
            Measurement::Drivers => drivers::measure(&servers, config, &mut report).await,
            Measurement::Http => http::measure(&servers, config, &mut report).await,
            Measurement::Outage => outage::measure(&mut servers, config).await,
            Measurement::Pipeline => pipeline::measure(&servers, config, &mut report).await,
            Measurement::Publish => publish::measure(&mut servers, config, &mut report).await,
            Measurement::Loss => loss::measure(&mut servers, config, &mut report).await,
            Measurement::Large => large::measure(&servers, config, &mut report).await,
            Measurement::Contracts => contracts::measure(&servers, config, &mut report).await,
            Measurement::Gate => gate::measure(&servers, config, &mut report).await,
            Measurement::Growth => growth::measure(&servers, config, &mut report).await,
            Measurement::Console => console::measure(&servers, config, &mut report).await,
            Measurement::Scale => scale::measure(&servers, config, &mut report).await,
            Measurement::Enqueue => enqueue::measure(&servers, config, &mut report).await,
        }
        .with_context(|| format!("measure {measurement}"))?;
    }
    report.print()?;
    report.write()
}

async fn measure_inbox(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    inbox::measure(servers, config, report).await?;
    added::measure(servers, config, report).await?;
    batch::measure(servers, config, report).await
}
