//! A storm of copies of one message that is being handled, with the gate in Redis and without.
//!
//! One run holds the key, sixty-four workers ask for it again and again over eight connections, as
//! the consumers of a broker do that delivers a message too often. Each copy has to be answered as
//! in flight. Without a gate that is a transaction and a claim in PostgreSQL, with it a command of
//! Redis and one look-up. The rates of copies are compared, and PostgreSQL's processor time for
//! each copy.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use oncebox_inbox::{Context, Gate, Handler, HandlerError, Inbox, Outcome, Received, Verdict};
use oncebox_tests::Redis;
use tokio::sync::Semaphore;

use crate::{
    backends,
    config::Config,
    inbox::{message, pool},
    report::Report,
    servers::Servers,
    statistics::median,
    workers::{Side, alternate},
};

const COPIES_AT_ONCE: usize = 64;
const CONNECTIONS: usize = 8;

/// Takes all rounds.
pub(crate) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> anyhow::Result<()> {
    let redis = Redis::start().await?;
    let (mut rates, mut costs) = (Vec::new(), Vec::new());
    for _ in 0..config.rounds {
        let bare = Storm::new(servers, None).await?;
        let gated = Storm::new(servers, Some(&redis)).await?;
        let (bare_began, gated_began) = (bare.backends(servers).await?, gated.backends(servers).await?);
        let round = async {
            bare.holds.started().await?;
            gated.holds.started().await?;
            alternate(config.duration, COPIES_AT_ONCE, &bare, &gated).await
        };
        let rate = tokio::select! {
            rate = round => rate?,
            ended = bare.hold() => bail!("the run that holds the key has ended: {ended:?}"),
            ended = gated.hold() => bail!("the run that holds the key and the gate has ended: {ended:?}"),
        };
        let admin = servers.session("postgres").await?;
        let cost = |used: Duration, storm: &Storm| {
            used.as_secs_f64() * 1e6 / storm.answered.load(Ordering::Relaxed).max(1) as f64
        };
        let bare_cost = cost(bare_began.cpu_since(&admin).await?, &bare);
        let gated_cost = cost(gated_began.cpu_since(&admin).await?, &gated);
        tracing::info!(
            "gate: {:.0} copies/s with, {:.0} without; PostgreSQL {gated_cost:.1} us a copy with, {bare_cost:.1} without",
            rate.measured,
            rate.reference
        );
        rates.push(rate);
        costs.push((gated_cost, bare_cost));
        for storm in [bare, gated] {
            let database = storm.database.clone();
            drop(storm);
            servers.drop_database(&database).await?;
        }
    }
    let gated = median(rates.iter().map(|rate| rate.measured));
    let bare = median(rates.iter().map(|rate| rate.reference));
    let behind = format!("{gated:.0} copies/s, without a gate {bare:.0}/s");
    report.add("gate_copies_ratio", median(rates.iter().map(|rate| rate.ratio())), behind);
    let (with, without) = (median(costs.iter().map(|cost| cost.0)), median(costs.iter().map(|cost| cost.1)));
    let behind = format!("{with:.1} us a copy, without a gate {without:.1} us");
    report.add("gate_postgres_ratio", with / without, behind);
    Ok(())
}

/// An inbox with a message that is being handled, and the copies of it.
struct Storm {
    database: String,
    inbox: Inbox,
    holds: Holds,
    message: Received,
    answered: AtomicU64,
}

impl Storm {
    async fn new(servers: &Servers, redis: Option<&Redis>) -> anyhow::Result<Arc<Self>> {
        let database = servers.migrated().await?;
        let pool = pool(servers, &format!("{database}?application_name=gate"), CONNECTIONS)?;
        let builder = Inbox::builder(pool).scope("bench:gate").single_tenant();
        let builder = builder.handler_timeout(Duration::from_secs(600));
        let inbox = match redis {
            // A run that was dropped leaves its gate closed for a while.
            Some(redis) => builder.gate(Gate::new(&redis.url())?.prefix(&database)),
            None => builder,
        };
        let inbox = inbox.build()?;
        let (holds, message) = (Holds(Semaphore::new(0)), message(1, 0)?);
        Ok(Arc::new(Self { database, inbox, holds, message, answered: AtomicU64::new(0) }))
    }

    /// Runs the message, for as long as this future is polled.
    async fn hold(&self) -> Result<Verdict<()>, oncebox_inbox::Error> {
        self.inbox.run(&self.holds, &self.message).await
    }

    async fn backends(&self, servers: &Servers) -> anyhow::Result<backends::Backends> {
        backends::of_carrier(&servers.session("postgres").await?, &self.database).await
    }
}

impl Side for Storm {
    async fn once(&self, _: usize) -> anyhow::Result<()> {
        let verdict = self.inbox.run(&self.holds, &self.message).await?;
        ensure!(matches!(verdict, Verdict::InFlight), "a copy was not turned away: {verdict:?}");
        self.answered.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// A handler that does not end; a permit says that it has begun.
struct Holds(Semaphore);

impl Holds {
    async fn started(&self) -> anyhow::Result<()> {
        self.0.acquire().await.map(drop).context("wait for the run that holds the key")
    }
}

impl Handler for Holds {
    type Message = serde_json::Value;
    type Reply = ();

    async fn handle(&self, _: Context<'_>, _: Self::Message) -> Result<Outcome<()>, HandlerError> {
        self.0.add_permits(1);
        std::future::pending().await
    }
}
