//! Takes the samples.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, ensure};
use oncebox_tests::{Program, traffic::Commit};
use tokio::time::Instant;
use tokio_postgres::Client;

use super::{
    process,
    sample::{Sample, Times, mib},
};
use crate::stage::Stage;

/// Timed are the first messages of transactions.
const TIMED: &str = "CREATE INDEX effect_timed ON effect (at) WHERE key LIKE '%-0'";
/// Of the last seconds, of the given number.
const EFFECTS: &str = "
    SELECT key, extract(epoch FROM at)::float8
    FROM effect
    WHERE key LIKE '%-0' AND at > clock_timestamp() - make_interval(secs => $1)";
/// Bytes: log, outbox, inbox, catalog.
const SIZES: &str = "
    SELECT
      pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8,
      sum(pg_total_relation_size(c.oid)) FILTER (WHERE n.nspname = 'oncebox' AND c.relname NOT LIKE 'inbox%')::float8,
      sum(pg_total_relation_size(c.oid)) FILTER (WHERE n.nspname = 'oncebox' AND c.relname LIKE 'inbox%')::float8,
      sum(pg_total_relation_size(c.oid)) FILTER (WHERE n.nspname = 'pg_catalog')::float8
    FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'oncebox' AND c.relkind IN ('r', 'm', 'S')
      OR n.nspname = 'pg_catalog' AND c.relname IN ('pg_class', 'pg_attribute', 'pg_statistic')";
/// An effect that has not come by then is counted by the judge only.
const EFFECT_MAX: Duration = Duration::from_secs(10 * 60);

pub(crate) struct Sampler {
    started: Instant,
    before: Reading,
    /// When messages were committed whose effects are not known yet.
    waiting: HashMap<String, SystemTime>,
}

/// Counters that grow.
struct Reading {
    at: Instant,
    delivered: u64,
    log: f64,
    /// Of the relays, by process.
    processor: HashMap<u32, Duration>,
}

impl Sampler {
    pub(crate) async fn start(stage: &Stage<'_>) -> Result<Self> {
        let client = stage.pool.get().await?;
        client.batch_execute(TIMED).await.context("prepare for timing")?;
        let [log, ..] = sizes(&client).await?;
        let before = read(stage, log)?;
        drop(stage.producing.take_commits());
        Ok(Self { started: before.at, before, waiting: HashMap::new() })
    }

    /// Measures since the sample before; nothing is forgotten when a server does not answer.
    pub(crate) async fn take(&mut self, stage: &Stage<'_>) -> Result<Sample> {
        let client = stage.pool.get().await?;
        let [log, outbox, inbox, catalog] = sizes(&client).await?;
        let window = self.before.at.elapsed() + EFFECT_MAX;
        let effects = client.query(EFFECTS, &[&window.as_secs_f64()]).await.context("read effects")?;
        let nats = memory_of(stage.broker.nodes()[0].pid())?;
        let relays = stage.relays.iter().map(memory_of_program).collect::<Result<Vec<f64>>>()?;
        let reading = read(stage, log)?;
        let commits = stage.producing.take_commits();
        let effects = effects.iter().map(|row| (row.get(0), row.get(1)));
        let effect = Times::of(self.match_effects(&commits, effects));
        let delivered = reading.delivered.saturating_sub(self.before.delivered);
        ensure!(delivered > 0, "nothing was delivered");
        #[expect(clippy::cast_precision_loss, reason = "some hundred thousand messages")]
        let messages = delivered as f64;
        let sample = Sample {
            at: reading.at.duration_since(self.started),
            committed: stage.producing.committed(),
            delivered: reading.delivered,
            rate: messages / reading.at.duration_since(self.before.at).as_secs_f64(),
            relays,
            nats,
            outbox: mib(outbox),
            inbox: mib(inbox),
            catalog: mib(catalog),
            wal: (log - self.before.log) / messages,
            processor: 1e6 * reading.processor_since(&self.before).as_secs_f64() / messages,
            commit: Times::of(commits.into_iter().map(|commit| commit.took).collect()),
            effect,
        };
        self.before = reading;
        Ok(sample)
    }

    /// How long the effects took that have come since the sample before.
    fn match_effects(
        &mut self,
        commits: &[Commit],
        effects: impl Iterator<Item = (String, f64)>,
    ) -> Vec<Duration> {
        self.waiting.extend(commits.iter().map(|commit| (commit.key.clone(), commit.at)));
        let mut times = Vec::new();
        for (key, at) in effects {
            if let Some(committed) = self.waiting.remove(&key) {
                let at = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(at);
                // The effect may come before the producer has its answer.
                times.push(at.duration_since(committed).unwrap_or_default());
            }
        }
        self.waiting.retain(|_, committed| committed.elapsed().is_ok_and(|waited| waited < EFFECT_MAX));
        times
    }
}

impl Reading {
    /// A relay that was killed takes along the time since the reading before.
    fn processor_since(&self, before: &Self) -> Duration {
        let known = |pid| before.processor.get(pid).copied().unwrap_or_default();
        self.processor.iter().map(|(pid, time)| time.saturating_sub(known(pid))).sum()
    }
}

fn read(stage: &Stage<'_>, log: f64) -> Result<Reading> {
    let pids = stage.relays.iter().filter_map(Program::pid);
    let processor = pids.map(|pid| Ok((pid, process::processor_time(pid)?))).collect::<Result<_>>()?;
    Ok(Reading { at: Instant::now(), delivered: stage.deliveries().handled, log, processor })
}

async fn sizes(client: &Client) -> Result<[f64; 4]> {
    let row = client.query_one(SIZES, &[]).await.context("read the sizes of tables")?;
    Ok([row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?])
}

fn memory_of_program(program: &Program) -> Result<f64> {
    memory_of(program.pid().context("a relay has ended")?)
}

#[expect(clippy::cast_precision_loss, reason = "MiB with one decimal")]
fn memory_of(pid: u32) -> Result<f64> {
    Ok(mib(process::memory(pid)? as f64))
}
