//! The whole way of a saga: an orchestrator, a service that takes part, two relays, one stream.
//!
//! First many sagas are started by several workers, and the time is taken until the last one is
//! completed. Then, while nothing else happens, single messages and single sagas take turns. A
//! message counts from the moment at which COMMIT has returned until its handler begins; a saga
//! from the INSERT that starts it to the UPDATE that completes it, by the database's clock. Six
//! messages make a saga, and between them are six transactions.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use deadpool_postgres::Pool;
use oncebox_inbox::{Consumer, Context, Handler, HandlerError, Inbox, Outcome};
use oncebox_outbox::{Message, Outbox};
use oncebox_saga::{Action, Barrier, Definition, Orchestrator, Replier};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{Order, REPLIES, SCOPE, definition, peer, subject};
use crate::{
    backends,
    config::Config,
    inbox,
    relay::Relay,
    report::Report,
    servers::{STREAM, Servers, within},
    statistics::median,
};

const CONCURRENCY: usize = 16;
const STARTERS: usize = 8;
/// The messages of a run, divided by this, are the number of sagas: ten thousand with the default
/// sizes.
const MESSAGES_PER_SAGA: usize = 30;
/// Before this, each saga waits for connections, consumers and caches.
const WARM_UP: usize = 5;
const LIMIT: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(1);
const EFFECT: &str = include_str!("../sql/effect.sql");

/// Takes all rounds.
pub(super) async fn measure(servers: &Servers, config: &Config, report: &mut Report) -> Result<()> {
    let sagas = (config.messages / MESSAGES_PER_SAGA).max(WARM_UP);
    let (mut rounds, mut peers) = (Vec::new(), Vec::new());
    for _ in 0..config.rounds {
        if let Some(python) = &config.dbos_python {
            let (rate, alone) = peer::measure(servers, python, sagas, config.duration).await?;
            tracing::info!("peer: {rate:.0}/s; alone {alone:.1} ms");
            peers.push((rate, alone));
        }
        let site = Site::start(servers).await?;
        let round = Box::pin(site.round(servers, config, sagas)).await;
        let ended = site.stop(servers).await;
        let round = round?;
        ended?;
        tracing::info!(
            "saga: {:.0}/s, PostgreSQL {:.0} % of a core; alone {:.1} ms, a message {:.2} ms",
            round.rate,
            round.postgres_percent,
            round.saga,
            round.message
        );
        rounds.push(round);
    }
    let of = |value: fn(&Round) -> f64| median(rounds.iter().map(value));
    if !peers.is_empty() {
        let (rate, alone) =
            (median(peers.iter().map(|peer| peer.0)), median(peers.iter().map(|peer| peer.1)));
        report.add("saga_peer_rate_ratio", of(|round| round.rate) / rate, format!("DBOS {rate:.0}/s"));
        let behind = format!("DBOS {alone:.1} ms, in one process");
        report.add("saga_peer_latency_ratio", of(|round| round.saga) / alone, behind);
    }
    let behind = format!("{sagas} started at once by {STARTERS} workers");
    report.add("saga_rate", of(|round| round.rate), behind);
    report.rate("saga", of(|round| round.rate));
    let behind = format!("{:.1} ms a saga", of(|round| round.postgres_percent * 10.0 / round.rate));
    report.add("saga_postgres_percent", of(|round| round.postgres_percent), behind);
    let behind = format!("{:.1} ms, a message {:.2} ms", of(|round| round.saga), of(|round| round.message));
    report.add("saga_latency_ratio", of(|round| round.saga / (6.0 * round.message)), behind);
    Ok(())
}

#[derive(Clone, Copy, Debug)]
struct Round {
    /// Completed sagas a second.
    rate: f64,
    /// The processor time of PostgreSQL's backends meanwhile, in per cent of a core.
    postgres_percent: f64,
    /// From start to completion of one that is alone, median, in milliseconds.
    saga: f64,
    /// From commit to handler of a message that is alone, median, in milliseconds.
    message: f64,
}

/// Everything that leads sagas.
struct Site {
    shop: String,
    service: String,
    pool: Pool,
    definition: Definition<Order>,
    orchestrator: Orchestrator,
    participant: Participant,
    started: AtomicI64,
    relays: Vec<Relay>,
    running: JoinSet<Result<()>>,
    shutdown: CancellationToken,
}

impl Site {
    async fn start(servers: &Servers) -> Result<Self> {
        servers.fresh_stream().await?;
        let (shop, service) = (servers.migrated().await?, servers.migrated().await?);
        servers.session(&service).await?.batch_execute(include_str!("../sql/effect_table.sql")).await?;
        let definition = definition()?;
        let orchestrator = Orchestrator::builder(REPLIES.parse()?).definition(&definition).build()?;
        let named = |database: &str| format!("{database}?application_name=saga");
        let (pool, services) = (
            inbox::pool(servers, &named(&shop), CONCURRENCY + STARTERS)?,
            inbox::pool(servers, &named(&service), CONCURRENCY)?,
        );
        let relays = vec![Relay::start(servers, &shop)?, Relay::start(servers, &service)?];
        let participant = Participant {
            barrier: Barrier::new("bench:step")?,
            replier: Replier::new(Outbox::new(servers.schema.clone()), [REPLIES]),
            arrived: Arc::default(),
        };
        let site = Self {
            shop,
            service,
            pool,
            definition,
            orchestrator,
            participant,
            started: AtomicI64::new(0),
            relays,
            running: JoinSet::new(),
            shutdown: CancellationToken::new(),
        };
        site.consume(servers, services).await
    }

    async fn consume(mut self, servers: &Servers, services: Pool) -> Result<Self> {
        let jetstream = async_nats::jetstream::new(servers.nats().await?);
        let consumer = |durable: &str, filter: &str| {
            Consumer::new(jetstream.clone(), STREAM, durable).filter_subject(filter).concurrency(CONCURRENCY)
        };
        let (orchestrator, shutdown) = (self.orchestrator.clone(), self.shutdown.clone());
        let (pool, replies) = (self.pool.clone(), consumer("saga-replies", REPLIES));
        self.running
            .spawn(async move { Ok(Box::pin(orchestrator.run(pool, replies, None, shutdown)).await?) });
        let inbox = Inbox::builder(services).scope(SCOPE).single_tenant().build()?;
        let commands = consumer("saga-steps", &subject(">"));
        let (participant, shutdown) = (self.participant.clone(), self.shutdown.clone());
        self.running.spawn(async move { Ok(commands.run(inbox, participant, shutdown).await?) });
        Ok(self)
    }

    async fn round(&self, servers: &Servers, config: &Config, sagas: usize) -> Result<Round> {
        self.lead(WARM_UP).await.context("lead the first sagas")?;
        let admin = servers.admin().await?;
        let before = [
            backends::of_carrier(&admin, &self.shop).await?,
            backends::of_carrier(&admin, &self.service).await?,
        ];
        let begun = Instant::now();
        self.lead(sagas).await?;
        let seconds = begun.elapsed().as_secs_f64();
        let mut postgres = Duration::ZERO;
        for backends in before {
            postgres += backends.cpu_since(&admin).await?;
        }
        let (saga, message) = self.alone(config.duration).await?;
        self.count(servers).await?;
        let postgres_percent = 100.0 * postgres.as_secs_f64() / seconds;
        Ok(Round { rate: sagas as f64 / seconds, postgres_percent, saga, message })
    }

    /// Starts a number of sagas, and waits until all of them are completed.
    async fn lead(&self, sagas: usize) -> Result<()> {
        let expected = self.orchestrator.counts().completed + sagas as u64;
        let next = AtomicUsize::new(0);
        let starter = async || {
            while next.fetch_add(1, Relaxed) < sagas {
                self.start_one().await?;
            }
            Ok::<_, anyhow::Error>(())
        };
        futures_util::future::try_join_all((0..STARTERS).map(|_| starter())).await?;
        let completed = async {
            while self.orchestrator.counts().completed < expected {
                sleep(LOOK).await;
            }
        };
        timeout(LIMIT, completed).await.with_context(|| {
            format!("sagas are not completed within {LIMIT:?}: {:?}", self.orchestrator.counts())
        })
    }

    async fn start_one(&self) -> Result<i64> {
        let number = self.started.fetch_add(1, Relaxed);
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        let (id, order) = (format!("{number}"), Order::new(number));
        let started = self.orchestrator.start(&transaction, &self.definition, &id, &order).await?;
        transaction.commit().await?;
        Ok(started.id)
    }

    /// One saga, one message, and so on: the medians in milliseconds.
    async fn alone(&self, length: Duration) -> Result<(f64, f64)> {
        let (mut sagas, mut messages) = (Vec::new(), Vec::new());
        let took = "SELECT 1000 * extract(epoch FROM finished_at - created_at)::float8 FROM oncebox.saga WHERE id = $1";
        let deadline = Instant::now() + length;
        while sagas.is_empty() || Instant::now() < deadline {
            messages.push(self.message().await?.as_secs_f64() * 1e3);
            let expected = self.orchestrator.counts().completed + 1;
            let id = self.start_one().await?;
            let client = self.pool.get().await?;
            let completed = async {
                while self.orchestrator.counts().completed < expected {
                    sleep(LOOK).await;
                }
                // Counted in the transaction that completes it.
                loop {
                    if let Some(milliseconds) = client.query_one(took, &[&id]).await?.get(0) {
                        return anyhow::Ok(milliseconds);
                    }
                    sleep(LOOK).await;
                }
            };
            sagas.push(timeout(LIMIT, completed).await.context("one saga is not completed")??);
        }
        Ok((median(sagas), median(messages)))
    }

    /// How long a message takes from its commit to its handler.
    async fn message(&self) -> Result<Duration> {
        let number = self.started.fetch_add(1, Relaxed);
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        let message =
            Message::json(format!("ping-{number}").parse()?, subject("ping").parse()?, &Order::new(number))?;
        Outbox::default().enqueue(&transaction, &message).await?;
        transaction.commit().await?;
        let committed = Instant::now();
        timeout(LIMIT, self.participant.arrived.notified()).await.context("a message does not arrive")?;
        Ok(committed.elapsed())
    }

    /// Each saga is completed, and each of their steps has happened once.
    async fn count(&self, servers: &Servers) -> Result<()> {
        let shop = servers.session(&self.shop).await?;
        let service = servers.session(&self.service).await?;
        let sagas = servers
            .schema
            .sql("SELECT count(*), count(*) FILTER (WHERE state = 'completed') FROM {schema}.saga");
        // They are counted in the transactions that complete them.
        let sagas = within("all sagas to be completed", LIMIT, async || {
            let row = shop.query_one(&sagas, &[]).await?;
            let (sagas, completed): (i64, i64) = (row.get(0), row.get(1));
            Ok((completed == sagas).then_some(sagas))
        })
        .await?;
        let effects: i64 = service.query_one("SELECT count(*) FROM effect", &[]).await?.get(0);
        ensure!(effects == 3 * sagas, "{sagas} sagas had {effects} effects");
        Ok(())
    }

    async fn stop(mut self, servers: &Servers) -> Result<()> {
        self.shutdown.cancel();
        while let Some(ended) = self.running.join_next().await {
            ended??;
        }
        for relay in self.relays {
            relay.stop().await?;
        }
        self.pool.close();
        servers.delete_stream().await?;
        for database in [self.shop, self.service] {
            servers.drop_database(&database).await?;
        }
        Ok(())
    }
}

/// Takes the commands of all three steps: a barrier, an effect, an answer. A ping it only notes.
#[derive(Clone)]
struct Participant {
    barrier: Barrier,
    replier: Replier,
    arrived: Arc<Notify>,
}

impl Handler for Participant {
    type Message = Order;
    type Reply = ();

    async fn handle(&self, cx: Context<'_>, order: Order) -> Result<Outcome<()>, HandlerError> {
        if cx.key().as_str().starts_with("ping-") {
            self.arrived.notify_one();
            return Ok(Outcome::done(()));
        }
        if self.barrier.action(&cx).await? == Action::Act {
            let statement = cx.transaction().prepare_cached(EFFECT).await?;
            cx.transaction().execute(&statement, &[&order.customer, &order.cents]).await?;
        }
        let outcome = Outcome::done(());
        self.replier.reply(&cx, &outcome).await?;
        Ok(outcome)
    }
}
