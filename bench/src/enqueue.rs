//! A producer's transaction that calls `enqueue`, against one with an INSERT into a plain table.
//!
//! Sixteen producers, each with its own connection and prepared statements: `BEGIN`, one message,
//! `COMMIT`. Nothing else is in the transaction, which is the hardest case for the ratio: any
//! business write would dilute it. The plain table has a `bigserial` and a unique `uuid`; its rows
//! are not ordered, not checked, and wake no relay. Both tables grow in turns. Then the same
//! producers give `enqueue_all` a thousand messages in each transaction, beside single calls.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use anyhow::ensure;
use tokio_postgres::Statement;

use crate::{
    backlog::PAYLOAD_BYTES,
    config::Config,
    report::Report,
    servers::{Servers, Session},
    statistics::median,
    workers::{Rates, Side, alternate},
};

pub(crate) const PRODUCERS: usize = 16;
/// The messages of a call of `enqueue_all`.
const ALL: u32 = 1_000;
pub(crate) const PLAIN: &str =
    "CREATE TABLE plain (id bigserial PRIMARY KEY, key uuid NOT NULL UNIQUE, payload bytea NOT NULL)";

/// Takes all rounds.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    let (mut rounds, mut all) = (Vec::new(), Vec::new());
    for _ in 0..config.rounds {
        let round = take(servers, config, [Way::Insert, Way::Enqueue]).await?;
        tracing::info!("enqueue: plain INSERT {:.0}/s, enqueue {:.0}/s", round.reference, round.measured);
        rounds.push(round);
        let mut round = take(servers, config, [Way::Enqueue, Way::All]).await?;
        round.measured *= f64::from(ALL);
        tracing::info!("enqueue: one by one {:.0}/s, enqueue_all {:.0}/s", round.reference, round.measured);
        all.push(round.ratio());
    }
    report.add("enqueue_all_ratio", median(all), "1,000 messages in a transaction".to_owned());
    let inserts = median(rounds.iter().map(|round| round.reference));
    let enqueues = median(rounds.iter().map(|round| round.measured));
    report.add(
        "enqueue_ratio",
        median(rounds.iter().map(|round| round.ratio())),
        format!("{enqueues:.0}/s, plain INSERT {inserts:.0}/s"),
    );
    report.rate("enqueue_reference", inserts);
    report.rate("enqueue", enqueues);
    Ok(())
}

async fn take(servers: &Servers, config: &Config, ways: [Way; 2]) -> anyhow::Result<Rates> {
    let database = servers.migrated().await?;
    servers.session(&database).await?.batch_execute(PLAIN).await?;
    let sent = Arc::new(AtomicU64::new(0));
    let [reference, measured] = ways;
    let reference = Arc::new(Producers::connect(servers, &database, reference, Arc::clone(&sent)).await?);
    let measured = Arc::new(Producers::connect(servers, &database, measured, Arc::clone(&sent)).await?);
    let rates = alternate(config.duration / 2, PRODUCERS, &reference, &measured).await?;
    let count =
        servers.schema.sql("SELECT (SELECT count(*) FROM {schema}.message) + (SELECT count(*) FROM plain)");
    let stored: i64 = servers.session(&database).await?.query_one(&count, &[]).await?.get(0);
    let sent = sent.load(Ordering::Relaxed);
    ensure!(stored.cast_unsigned() == sent, "{stored} messages are in the tables instead of {sent}");
    servers.drop_database(&database).await?;
    Ok(rates)
}

/// Producers of this process, so far.
static RUNS: AtomicU64 = AtomicU64::new(0);

/// How a producer writes.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    Insert,
    Enqueue,
    /// [`ALL`] messages in one call.
    All,
}

impl Way {
    fn messages(self) -> u32 {
        if matches!(self, Self::All) { ALL } else { 1 }
    }
}

/// Sixteen of them, each with a connection of its own.
pub(crate) struct Producers {
    way: Way,
    sessions: Vec<(Session, Statement)>,
    /// Counts the messages of both sides, and so numbers their keys.
    sent: Arc<AtomicU64>,
    /// Keeps keys apart from those of other producers in the database.
    run: u64,
}

impl Producers {
    pub(crate) async fn connect(
        servers: &Servers,
        database: &str,
        way: Way,
        sent: Arc<AtomicU64>,
    ) -> anyhow::Result<Self> {
        let sql = servers.schema.sql(match way {
            Way::Insert => include_str!("sql/insert.sql"),
            Way::Enqueue => include_str!("sql/enqueue.sql"),
            Way::All => include_str!("sql/enqueue_all.sql"),
        });
        let mut sessions = Vec::new();
        for _ in 0..PRODUCERS {
            let session = servers.session(database).await?;
            let statement = session.prepare(&sql).await?;
            sessions.push((session, statement));
        }
        Ok(Self { way, sessions, sent, run: RUNS.fetch_add(1, Ordering::Relaxed) << 32 })
    }
}

impl Side for Producers {
    async fn once(&self, worker: usize) -> anyhow::Result<()> {
        let (session, statement) = &self.sessions[worker];
        let messages = self.way.messages();
        let first = self.sent.fetch_add(messages.into(), Ordering::Relaxed);
        // Spread over the index like random keys: the low digits come first.
        let key = |number: u64| format!("{:016x}{:016x}", number.reverse_bits(), self.run + number);
        let keys: Vec<String> = (first..first + u64::from(messages)).map(key).collect();
        let subject = "bench.orders.placed";
        let payload = [b'x'; PAYLOAD_BYTES];
        session.batch_execute("BEGIN").await?;
        match self.way {
            Way::Insert => session.execute(statement, &[&keys[0], &payload.as_slice()]).await?,
            Way::Enqueue => session.execute(statement, &[&keys[0], &subject, &payload.as_slice()]).await?,
            Way::All => session.execute(statement, &[&keys, &subject, &payload.as_slice()]).await?,
        };
        session.batch_execute("COMMIT").await?;
        Ok(())
    }
}
