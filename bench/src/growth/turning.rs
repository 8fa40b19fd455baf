//! Producers while the ring turns, and the size of the database over many turns.

use std::{process::Stdio, sync::Arc, time::Duration};

use anyhow::Context as _;
use tokio::{
    process::Command,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    config::Config,
    enqueue::{Producers, Way},
    report::Report,
    servers::{Servers, Session},
    statistics::{median, percentile},
    workers::Side as _,
};

/// Together they send a thousand messages a second.
const WORKERS: usize = 8;
const EVERY: Duration = Duration::from_millis(8);
/// From one turn to the next: 28 hours by default.
const TURN: Duration = Duration::from_secs(1);
/// Messages of a turn, for the size.
const MESSAGES: i64 = 20_000;
/// Once round the ring, and once more.
const RING: usize = 8;
const ROUNDS: usize = 3;

/// Others at work beside producers.
#[derive(Clone, Copy)]
struct Beside {
    turns: bool,
    /// A transaction that holds an old snapshot, and `pg_dump` again and again.
    readers: bool,
}

pub(super) async fn measure(
    servers: &Servers,
    config: &Config,
    database: &str,
    report: &mut Report,
) -> anyhow::Result<()> {
    // Earlier measurements have left work for autovacuum.
    servers.session(database).await?.batch_execute("VACUUM").await?;
    servers.session(database).await?.batch_execute("CHECKPOINT").await?;
    let (mut turns, mut readers, mut longest) = (Vec::new(), Vec::new(), Vec::new());
    let mut turned = 0;
    for _ in 0..config.rounds {
        for (beside_readers, ratios) in [(false, &mut turns), (true, &mut readers)] {
            let beside = |turns| Beside { turns, readers: beside_readers };
            let (still, _) = latencies(servers, config, database, beside(false)).await?;
            let (turning, number) = latencies(servers, config, database, beside(true)).await?;
            let [still, p99] = [still, turning.clone()].map(|sorted| percentile(&sorted, 99));
            tracing::info!(
                "growth: p99 {still:.2} ms, {p99:.2} while the ring turns {number} times, readers: {beside_readers}"
            );
            ratios.push(p99 / still);
            longest.push(percentile(&turning, 100));
            turned += number;
        }
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
    let reader = servers.session(database).await?;
    if beside.readers {
        let old = servers.schema.sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM {schema}.lane");
        reader.batch_execute(&old).await?;
    }
    let dumping = async { if beside.readers { dump_until(servers, database, until).await } else { Ok(()) } };
    let turning = async { if beside.turns { turn_until(servers, database, until).await } else { Ok(0) } };
    let (dumped, turned, ()) = tokio::join!(dumping, turning, sleep_until(until));
    dumped?;
    let turned = turned?;
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
    let session = servers.session(database).await?;
    let mut turned = 0;
    while Instant::now() < until {
        sleep(TURN).await;
        turned += usize::from(turn(servers, &session).await?);
    }
    Ok(turned)
}

/// Settles the log and turns the ring: each step in one round trip with its commit,
/// which waits for no disk, as a relay does it. Whether the turn ended.
async fn turn(servers: &Servers, session: &Session) -> anyhow::Result<bool> {
    let number = servers.schema.sql("SELECT pg_sequence_last_value('{schema}.turn')");
    let before: i64 = session.query_one(&number, &[]).await?.get(0);
    session.batch_execute(&servers.schema.sql(include_str!("../sql/settle_by_hand.sql"))).await?;
    for step in ["drain_segments()", "empty_segment(0)", "end_turn(0, 50, 0)"] {
        let sql = include_str!("../sql/maintain.sql").replace("{step}", step);
        session.batch_execute(&servers.schema.sql(&sql)).await?;
    }
    Ok(session.query_one(&number, &[]).await?.get::<_, i64>(0) > before)
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
            () = sleep_until(until) => {}
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
            anyhow::ensure!(turn(servers, &session).await?, "the turn did not end");
        }
        let bytes = "SELECT pg_database_size(current_database())::float8";
        sizes.push(session.query_one(bytes, &[]).await?.get::<_, f64>(0));
    }
    let behind = format!("{ROUNDS} times round, {MESSAGES} messages a turn: {:.0} MiB", sizes[0] / 1048576.0);
    report.add("growth_size_ratio", sizes[ROUNDS - 1] / sizes[0], behind);
    drop(session);
    servers.drop_database(&database).await
}
