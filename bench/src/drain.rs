//! Draining a backlog: the relay against an async-nats program that publishes the same messages
//! from memory.
//!
//! Five runs make a round, each into a new stream on the same nats-server: the reference, the
//! relay, the relay while another session holds an old snapshot and a transaction id, the relay
//! with a thousand ordering keys, each with at most one unacknowledged message, and the reference
//! again. The relay is compared with the mean of both references of its round, and the held
//! snapshot with the free one.
//!
//! Both sides are timed by the same clock in the same way: nats-server's own timestamps of the
//! first and the last message that it stored. So the start of a process is not measured, and
//! measuring disturbs neither side. The relay's first read of PostgreSQL and its last settlement
//! are outside of this span; everything between them is inside. PostgreSQL runs on the same cores
//! as the relay and the reference.
//!
//! The WAL is everything that PostgreSQL wrote between the start and the end of the relay, while no
//! other session wrote.

use std::{io::Write as _, time::Duration};

use anyhow::{Context, ensure};
use async_nats::jetstream::stream::{State, Stream};
use tempfile::NamedTempFile;
use tokio::task::JoinSet;

use crate::{
    backlog::{Backlog, Ordering},
    config::Config,
    reference,
    relay::Relay,
    report::Report,
    servers::{Publish, Servers, Session, within},
    statistics::median,
};

const ORDERING_KEYS: u32 = 1_000;
const SCRAPE_INTERVAL: Duration = Duration::from_secs(1);
/// The pause after a run, in which the servers remove the deleted stream and database.
const PAUSE: Duration = Duration::from_millis(500);

/// Takes all rounds.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    tracing::info!("enqueue {} messages, twice", config.messages);
    let backlog = Backlog::fill(servers, config.messages, Ordering::None).await?;
    let ordered = Backlog::fill(servers, config.messages, Ordering::Keys(ORDERING_KEYS)).await?;
    let mut rounds = Vec::new();
    for number in 0..config.rounds {
        let round = Round::take(servers, &backlog, &ordered, number.is_multiple_of(2)).await?;
        tracing::info!(
            "drain: reference {:.0}/s, relay {:.0}/s, snapshot held {:.0}/s, {ORDERING_KEYS} ordering keys {:.0}/s",
            round.reference_rate,
            round.free.rate,
            round.held.rate,
            round.ordered.rate
        );
        rounds.push(round);
    }
    for database in [backlog.database, ordered.database] {
        servers.drop_database(&database).await?;
    }
    summarise(&rounds, report);
    Ok(())
}

fn summarise(rounds: &[Round], report: &mut Report) {
    let median_of = |value: fn(&Round) -> f64| median(rounds.iter().map(value));
    let reference = median_of(|round| round.reference_rate);
    let free = median_of(|round| round.free.rate);
    let held = median_of(|round| round.held.rate);
    let ordered = median_of(|round| round.ordered.rate);
    report.add(
        "drain_ratio",
        median_of(|round| round.free.rate / round.reference_rate),
        format!("{free:.0}/s, async-nats from memory {reference:.0}/s"),
    );
    report.add(
        "drain_held_snapshot_ratio",
        median_of(|round| round.held.rate / round.free.rate),
        format!("{held:.0}/s"),
    );
    report.add(
        "drain_ordered_ratio",
        median_of(|round| round.ordered.rate / round.reference_rate),
        format!("{ordered:.0}/s, {ORDERING_KEYS} ordering keys"),
    );
    report.add(
        "relay_wal_bytes_per_message",
        median_of(|round| round.free.wal_bytes_per_message),
        format!("snapshot held {:.2}", median_of(|round| round.held.wal_bytes_per_message)),
    );
    report.add(
        "relay_rss_mib",
        median_of(|round| round.free.peak_rss_mib),
        format!(
            "peak while draining; with ordering keys {:.1}",
            median_of(|round| round.ordered.peak_rss_mib)
        ),
    );
    report.add(
        "drain_relay_cpu_us_per_message",
        median_of(|round| round.free.cpu_us_per_message),
        "user and kernel time of the relay alone".to_owned(),
    );
    report.rate("drain_reference", reference);
    report.rate("drain", free);
    report.rate("drain_held_snapshot", held);
    report.rate("drain_ordered", ordered);
}

/// The measurements of one round. The order of the runs between the references alternates, so that
/// a machine that slowly becomes faster or slower favours none of them.
struct Round {
    reference_rate: f64,
    free: Drain,
    held: Drain,
    ordered: Drain,
}

impl Round {
    async fn take(
        servers: &Servers,
        backlog: &Backlog,
        ordered: &Backlog,
        forward: bool,
    ) -> anyhow::Result<Self> {
        let reference = async || publish(servers, backlog).await.context("publish from memory");
        let free = async || drain(servers, backlog, Beside::Nothing).await.context("drain");
        let held =
            async || drain(servers, backlog, Beside::OldSnapshot).await.context("drain with a held snapshot");
        let with_keys =
            async || drain(servers, ordered, Beside::Nothing).await.context("drain with ordering keys");
        let first = reference().await?;
        let (free, held, ordered) = if forward {
            (free().await?, held().await?, with_keys().await?)
        } else {
            let (ordered, held) = (with_keys().await?, held().await?);
            (free().await?, held, ordered)
        };
        let second = reference().await?;
        ensure!(
            first.bytes == free.bytes,
            "the relay stored {} bytes and the reference {}: they published different messages",
            free.bytes,
            first.bytes
        );
        Ok(Self { reference_rate: f64::midpoint(first.rate, second.rate), free, held, ordered })
    }
}

/// The load beside a drain.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Beside {
    Nothing,
    /// Another session holds an old snapshot and a transaction id.
    OldSnapshot,
    /// The metrics are read every second.
    Scrapes,
    /// Each payload is checked against `contracts.json`.
    Contracts,
    /// The parked messages of the backlog wait for their next attempts, spread over the longest
    /// pause between two.
    ParkedMessages,
}

/// The result of a run, as the stream shows it.
pub(crate) struct Stored {
    /// Messages per second.
    pub(crate) rate: f64,
    bytes: u64,
}

pub(crate) struct Drain {
    pub(crate) rate: f64,
    bytes: u64,
    wal_bytes_per_message: f64,
    pub(crate) peak_rss_mib: f64,
    pub(crate) cpu_us_per_message: f64,
}

pub(crate) async fn publish(servers: &Servers, backlog: &Backlog) -> anyhow::Result<Stored> {
    let mut stream = servers.fresh_stream().await?;
    reference::publish_all(servers, &backlog.messages).await?;
    let stored = stored(&mut stream, backlog.messages.len()).await?;
    servers.delete_stream().await?;
    tokio::time::sleep(PAUSE).await;
    Ok(stored)
}

pub(crate) async fn drain(servers: &Servers, backlog: &Backlog, beside: Beside) -> anyhow::Result<Drain> {
    drain_by(servers, backlog, beside, Publish::Pipelined).await
}

pub(crate) async fn drain_by(
    servers: &Servers,
    backlog: &Backlog,
    beside: Beside,
    publish: Publish,
) -> anyhow::Result<Drain> {
    let messages = backlog.messages.len();
    let database = servers.copy_of(&backlog.database).await?;
    let holder = servers.session(&database).await?;
    match beside {
        Beside::OldSnapshot => hold(&holder).await?,
        Beside::ParkedMessages => {
            holder.batch_execute(&servers.schema.sql(include_str!("sql/spread.sql"))).await?;
        }
        Beside::Nothing | Beside::Scrapes | Beside::Contracts => {}
    }
    let mut stream = servers.fresh_stream_for(publish).await?;
    let admin = servers.admin().await?;
    let wal_before = wal_position(&admin).await?;
    let mut file = NamedTempFile::new()?;
    let mut contracts = NamedTempFile::new()?;
    if matches!(beside, Beside::Contracts) {
        contracts.write_all(include_bytes!("contracts.json"))?;
        writeln!(file, "contracts = {:?}", contracts.path())?;
    }
    file.write_all(publish.file().as_bytes())?;
    let mut relay = Relay::start_with(servers, &database, file.path())?;
    let mut scraper = JoinSet::new();
    if matches!(beside, Beside::Scrapes) {
        scraper.spawn(relay.scraper().each(SCRAPE_INTERVAL));
    }
    let limit = Duration::from_secs(60 + messages as u64 / 1_000);
    within("the backlog to be drained", limit, async || {
        relay.check()?;
        Ok((stream.info().await?.state.messages >= messages as u64).then_some(()))
    })
    .await?;
    let peak_rss_mib = relay.peak_rss_mib()?;
    let cpu = relay.cpu()?;
    drop(scraper);
    relay.stop().await?;
    let wal = wal_position(&admin).await? - wal_before;
    let stored = stored(&mut stream, messages).await?;
    drop(holder);
    servers.delete_stream().await?;
    servers.drop_database(&database).await?;
    tokio::time::sleep(PAUSE).await;
    let per_message = |total: f64| total / messages as f64;
    Ok(Drain {
        rate: stored.rate,
        bytes: stored.bytes,
        wal_bytes_per_message: per_message(wal),
        peak_rss_mib,
        cpu_us_per_message: per_message(cpu.as_secs_f64() * 1e6),
    })
}

/// Opens a transaction and leaves it open, like a forgotten report. Its snapshot keeps every dead
/// row version in this database, and its transaction id is in every snapshot that the relay takes.
/// It ends with the session.
async fn hold(session: &Session) -> anyhow::Result<()> {
    session.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()").await?;
    Ok(())
}

/// The end of the WAL, in bytes.
async fn wal_position(session: &Session) -> anyhow::Result<f64> {
    let position = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8";
    Ok(session.query_one(position, &[]).await?.get(0))
}

/// Checks that the stream has as many messages as the backlog, and returns the rate at which they
/// were stored.
async fn stored(stream: &mut Stream, messages: usize) -> anyhow::Result<Stored> {
    let state: State = stream.info().await.context("read the stream's state")?.state.clone();
    ensure!(
        state.messages == messages as u64,
        "{} messages are in the stream instead of {messages}",
        state.messages
    );
    let span = state.last_timestamp.unix_timestamp_nanos() - state.first_timestamp.unix_timestamp_nanos();
    let seconds = span as f64 / 1e9;
    Ok(Stored { rate: (messages - 1) as f64 / seconds, bytes: state.bytes })
}
