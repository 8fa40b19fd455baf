//! The ways of publishing: each message acknowledged by itself, and atomic batches.
//!
//! A round drains the same messages in both ways, in an order that alternates: without ordering
//! keys, with a thousand, and with a single one, from the drain's server with its default settings;
//! and then a tenth of them from a nats-server that acknowledges only messages on the disk
//! (`sync_interval: always`). Ways that do not wait for the disk are compared with the reference of
//! `drain`; the others with the pipelined way.

use anyhow::Context as _;

use crate::{
    backlog::{Backlog, Ordering},
    config::Config,
    drain::{self, Beside, drain_by},
    report::Report,
    servers::{Publish, Servers},
    statistics::median,
};

const WAYS: [(Publish, &str); 2] = [(Publish::Pipelined, "pipelined"), (Publish::Atomic, "atomic")];
const KEYS: [(Ordering, &str); 3] =
    [(Ordering::None, "no_keys"), (Ordering::Keys(1_000), "thousand_keys"), (Ordering::Keys(1), "one_key")];
/// A message takes longer by this factor where each acknowledgement waits for the disk.
const DURABLE_SHARE: usize = 10;

/// Takes all rounds.
pub(crate) async fn measure(
    servers: &mut Servers,
    config: &Config,
    report: &mut Report,
) -> anyhow::Result<()> {
    for (ordering, keys) in KEYS {
        let backlog = Backlog::fill(servers, config.messages, ordering).await?;
        let mut ratios = [Vec::new(), Vec::new()];
        let mut rates = [Vec::new(), Vec::new()];
        let mut memory: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
        for round in 0..config.rounds {
            let first = drain::publish(servers, &backlog).await?.rate;
            let mut taken = [0.0; 2];
            for way in order(round) {
                let drained = drain_by(servers, &backlog, Beside::Nothing, WAYS[way].0).await;
                let drained = drained.with_context(|| format!("drain {}", WAYS[way].1))?;
                taken[way] = drained.rate;
                memory[way].push(drained.peak_rss_mib);
            }
            let reference = f64::midpoint(first, drain::publish(servers, &backlog).await?.rate);
            for way in [0, 1] {
                ratios[way].push(taken[way] / reference);
                rates[way].push(taken[way]);
            }
            tracing::info!("publish {keys}: {taken:.0?}/s, reference {reference:.0}/s");
        }
        servers.drop_database(&backlog.database).await?;
        for (way, (_, name)) in WAYS.iter().enumerate() {
            let rate = median(rates[way].iter().copied());
            let rss = median(memory[way].iter().copied());
            report.add(
                &format!("publish_{name}_{keys}_ratio"),
                median(ratios[way].iter().copied()),
                format!("{rate:.0}/s, peak memory {rss:.1} MiB"),
            );
        }
    }
    servers.replace_nats("sync_interval: always").await?;
    let measured = durable(servers, config, report).await;
    servers.replace_nats("").await?;
    measured
}

async fn durable(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    let backlog = Backlog::fill(servers, config.messages / DURABLE_SHARE, Ordering::None).await?;
    let (mut ratios, mut rates) = (Vec::new(), Vec::new());
    for round in 0..config.rounds {
        let mut taken = [0.0; 2];
        for way in order(round) {
            taken[way] = drain_by(servers, &backlog, Beside::Nothing, WAYS[way].0).await?.rate;
        }
        tracing::info!("publish with sync_interval always: {taken:.0?}/s");
        ratios.push(taken[1] / taken[0]);
        rates.push(taken[1]);
    }
    servers.drop_database(&backlog.database).await?;
    report.add(
        "publish_atomic_durable_ratio",
        median(ratios.iter().copied()),
        format!(
            "{:.0}/s on the disk, against the pipelined way on the same server",
            median(rates.iter().copied())
        ),
    );
    Ok(())
}

fn order(round: usize) -> [usize; 2] {
    if round.is_multiple_of(2) { [0, 1] } else { [1, 0] }
}
