//! Producers while the ring turns, and the size of the database over many turns.

use std::{process::Stdio, sync::Arc, time::Duration};

use anyhow::Context as _;
use tokio::{
    process::Command,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tokio_util::sync::CancellationToken;

use super::settle;
use crate::{
    config::Config,
    enqueue::{Producers, Way},
    report::Report,
    servers::Servers,
    statistics::{median, percentile},
    workers::Side as _,
};

/// Together they send a thousand messages a second.
const WORKERS: usize = 8;
const EVERY: Duration = Duration::from_millis(8);
const TURN: Duration = Duration::from_millis(500);
/// Messages of a turn, for the size.
const MESSAGES: i64 = 20_000;
/// Once round the ring, and once more.
const RING: usize = 8;
const ROUNDS: usize = 3;

/// What goes on beside producers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    Turns,
    /// Turns, a transaction that holds an old snapshot, and `pg_dump` again and again.
    Readers,
}

pub(super) async fn measure(
    servers: &Servers,
    config: &Config,
    database: &str,
    report: &mut Report,
) -> anyhow::Result<()> {
    let (mut turns, mut readers, mut longest) = (Vec::new(), Vec::new(), Vec::new());
    let mut turned = 0;
    for _ in 0..config.rounds {
        let (alone, _) = latencies(servers, config, database, Beside::Nothing).await?;
        let (while_turning, number) = latencies(servers, config, database, Beside::Turns).await?;
        let (beside_readers, of_these) = latencies(servers, config, database, Beside::Readers).await?;
        let p99 = |sorted: &[f64]| percentile(sorted, 99);
        tracing::info!(
            "growth: p99 {:.2} ms, {:.2} while the ring turns {number} times, {:.2} with readers and {of_these} turns",
            p99(&alone),
            p99(&while_turning),
            p99(&beside_readers)
        );
        turns.push(p99(&while_turning) / p99(&alone));
        readers.push(p99(&beside_readers) / p99(&alone));
        longest.push(percentile(&while_turning, 100).max(percentile(&beside_readers, 100)));
        turned += number + of_these;
    }
    report.add("growth_turn_p99_ratio", median(turns), format!("{turned} turns, one each {TURN:?}"));
    report.add("growth_readers_p99_ratio", median(readers), "pg_dump, and an old snapshot".to_owned());
    report.add("growth_stall_ms", median(longest), "the slowest message while the ring turns".to_owned());
    size(servers, report).await
}

/// How long each message of producers took, in milliseconds, sorted; and how often the ring turned.
async fn latencies(
    servers: &Servers,
    config: &Config,
    database: &str,
    beside: Beside,
) -> anyhow::Result<(Vec<f64>, usize)> {
    let stop = CancellationToken::new();
    let producers = Producers::connect(servers, database, Way::Enqueue, Arc::default()).await?;
    let producers = Arc::new(producers);
    let mut working = JoinSet::new();
    for worker in 0..WORKERS {
        let (producers, stop) = (Arc::clone(&producers), stop.clone());
        working.spawn(async move {
            let mut took = Vec::new();
            let mut ticks = interval(EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while !stop.is_cancelled() {
                ticks.tick().await;
                let begun = Instant::now();
                producers.once(worker).await?;
                took.push(begun.elapsed().as_secs_f64() * 1e3);
            }
            anyhow::Ok(took)
        });
    }
    let until = Instant::now() + config.duration;
    let turned = match beside {
        Beside::Nothing => {
            sleep(config.duration).await;
            0
        }
        Beside::Turns => turn_until(servers, database, until).await?,
        Beside::Readers => {
            let reader = servers.session(database).await?;
            let old = servers.schema.sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM {schema}.lane");
            reader.batch_execute(&old).await?;
            let (dumped, turned) =
                tokio::join!(dump_until(servers, database, until), turn_until(servers, database, until));
            dumped?;
            turned?
        }
    };
    stop.cancel();
    let mut took = Vec::new();
    while let Some(ended) = working.join_next().await {
        took.extend(ended.context("run a producer")??);
    }
    took.sort_by(f64::total_cmp);
    Ok((took, turned))
}

/// Ends turns and empties segments, as maintenance does; returns how many turns ended.
async fn turn_until(servers: &Servers, database: &str, until: Instant) -> anyhow::Result<usize> {
    let mut turned = 0;
    while Instant::now() < until {
        sleep(TURN).await;
        settle(servers, database).await?;
        turned += usize::from(turn(servers, database).await?);
    }
    Ok(turned)
}

/// Whether the turn ended.
async fn turn(servers: &Servers, database: &str) -> anyhow::Result<bool> {
    let mut session = servers.session(database).await?;
    let mut has_ended = false;
    for step in ["drain_segments()", "empty_segment(0)", "end_turn(0, 50, 0)"] {
        let transaction = session.transaction().await?;
        let maintenance = servers.schema.sql("SELECT FROM {schema}.maintenance FOR UPDATE");
        transaction.execute(&maintenance, &[]).await?;
        let step = servers.schema.sql(&format!("SELECT * FROM {{schema}}.{step}"));
        let rows = transaction.query(&step, &[]).await?;
        has_ended = step.contains("end_turn") && rows[0].get::<_, Option<&str>>(0).is_none();
        transaction.commit().await?;
    }
    Ok(has_ended)
}

/// Dumps the database again and again.
async fn dump_until(servers: &Servers, database: &str, until: Instant) -> anyhow::Result<()> {
    let program = oncebox_tests::postgres_directory()?.join("pg_dump");
    let mut dump = Command::new(program);
    dump.arg(servers.database_url(database)).stdout(Stdio::null()).kill_on_drop(true);
    while Instant::now() < until {
        let mut running = dump.spawn().context("start pg_dump")?;
        tokio::select! {
            ended = running.wait() => anyhow::ensure!(ended?.success(), "pg_dump failed"),
            () = tokio::time::sleep_until(until) => {}
        }
    }
    Ok(())
}

/// The size of a database after each time round the ring, at a constant load.
async fn size(servers: &Servers, report: &mut Report) -> anyhow::Result<()> {
    let database = servers.migrated().await?;
    let session = servers.session(&database).await?;
    let fill = servers.schema.sql(include_str!("../sql/fill.sql"));
    let mut sizes = Vec::new();
    for _ in 0..ROUNDS {
        for _ in 0..RING {
            for first in (1..=MESSAGES).step_by(10_000) {
                session.execute(&fill, &[&first, &(first + 9_999), &None::<i64>, &256]).await?;
            }
            settle(servers, &database).await?;
            anyhow::ensure!(turn(servers, &database).await?, "the turn did not end");
        }
        let bytes = "SELECT pg_database_size(current_database())::float8";
        sizes.push(session.query_one(bytes, &[]).await?.get::<_, f64>(0));
    }
    let behind = format!("{ROUNDS} times round, {MESSAGES} messages a turn: {:.0} MiB", sizes[0] / 1048576.0);
    report.add("growth_size_ratio", sizes[ROUNDS - 1] / sizes[0], behind);
    drop(session);
    servers.drop_database(&database).await
}
