//! The servers, the processes, and how much work they have left.

use std::{net::TcpListener, time::Duration};

use anyhow::{Context, Result};
use async_nats::jetstream::{
    self,
    stream::{Config, Stream},
};
use deadpool_postgres::Pool;
use oncebox_model::trace::{Circumstances, Verdict};
use oncebox_schema::{Lanes, SchemaName, migrate};
use oncebox_tests::{Nats, Postgres, Program, Proxy, Recording, is_settled, pool, traffic};

use crate::{
    Beside,
    consume::{self, BATCH, EACH, SAGAS},
    member::{Kind, Member},
    order::STREAM,
    sagas::{self, LEADING, STARTING, TAKING_PART},
};

/// The durable consumers.
pub(crate) const DURABLES: [&str; 6] = [EACH, BATCH, "cashier", STARTING, TAKING_PART, LEADING];
const MEMBERS: [(Kind, usize); 5] =
    [(Kind::Relay, 2), (Kind::Each, 2), (Kind::Batch, 2), (Kind::Cashier, 3), (Kind::Sagas, 2)];
/// The actions that have to occur in recordings of consumers.
const EXPECTED: [&str; 17] = [
    "copies",
    "in flight",
    "takeovers",
    "failures",
    "releases",
    "commits without an answer",
    "rejections",
    "deaths",
    "terms",
    "naks",
    "effects",
    "effects outside",
    "calls of unknown outcome",
    "results known",
    "changes",
    "handovers",
    "compensations",
];
/// The lease of the cashiers.
const LEASE: Duration = Duration::from_secs(1);
const POOL_WAIT: Duration = Duration::from_secs(10);
const CONNECTIONS: usize = 8;

pub(crate) struct Stage {
    pub(crate) pool: Pool,
    pub(crate) stream: Stream,
    pub(crate) jetstream: jetstream::Context,
    pub(crate) members: Vec<Member>,
    pub(crate) gateway: Program,
    pub(crate) gateway_port: u16,
    /// The passes of the relays, which the specification has to accept.
    recording: Recording,
    /// The steps of the consumers and orchestrators.
    consuming: Recording,
    database: Target,
    nats_url: String,
    /// Whether relays of this program deliver.
    has_relays: bool,
    /// The servers of this program.
    _servers: Option<(Postgres, Nats)>,
}

/// A database that processes reach through proxies.
struct Target {
    port: u16,
    name: String,
}

impl Stage {
    pub(crate) async fn start(beside: Option<&Beside>) -> Result<Self> {
        let (servers, Beside { database_url, nats_url }) = match beside {
            Some(beside) => (None, beside.clone()),
            None => {
                let (postgres, nats) = tokio::try_join!(Postgres::start(), Nats::start())?;
                let own = Beside { database_url: postgres.url("postgres"), nats_url: nats.url() };
                (Some((postgres, nats)), own)
            }
        };
        let pool = pool(&database_url, CONNECTIONS, POOL_WAIT)?;
        let mut client = pool.get().await?;
        migrate(&mut client, &SchemaName::default(), Lanes::default()).await?;
        let settlement = include_str!("../../../../examples/src/cashier/schema.sql");
        for tables in [traffic::TABLES, consume::TABLE, sagas::TABLE, settlement] {
            client.batch_execute(tables).await?;
        }
        drop(client);
        let jetstream = jetstream::new(async_nats::connect(&nats_url).await.context("connect to NATS")?);
        let stream =
            jetstream.create_stream(stream_config(beside.is_some())).await.context("create the stream")?;
        // If another process takes the port before the gateway does, the gateway ends at once, and
        // the cashiers fail.
        let gateway_port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let listen = ("GATEWAY_LISTEN", format!("127.0.0.1:{gateway_port}"));
        let gateway = Program::start("gateway", &[], &[listen]).await?;
        let (recording, consuming, members) = (Recording::new()?, Recording::new()?, Vec::new());
        let mut stage = Self {
            pool,
            stream,
            jetstream,
            members,
            gateway,
            gateway_port,
            recording,
            consuming,
            database: Target::of(&database_url)?,
            nats_url,
            has_relays: servers.is_some(),
            _servers: servers,
        };
        for (kind, count) in MEMBERS {
            let is_needed = kind != Kind::Relay || stage.has_relays;
            for _ in 0..if is_needed { count } else { 0 } {
                stage.add(kind).await?;
            }
        }
        Ok(stage)
    }

    async fn add(&mut self, kind: Kind) -> Result<()> {
        let line = Proxy::start(([127, 0, 0, 1], self.database.port).into()).await;
        let database_url = format!("postgres://postgres@127.0.0.1:{}/{}", line.port(), self.database.name);
        let servers = [("DATABASE_URL", database_url.clone()), ("NATS_URL", self.nats_url.clone())];
        // Beside another program it goes on for hours, and servers come back with less.
        let file = self.consuming.file(self.members.len());
        let recorded = Vec::from_iter(self.has_relays.then_some(("ONCEBOX_TRACE_FILE", file)));
        let consume = async |mode| {
            let arguments = ["consume", mode, &database_url, &self.nats_url];
            Program::start("chaos", &arguments, &recorded).await
        };
        let program = match kind {
            Kind::Each => consume(EACH).await?,
            Kind::Batch => consume(BATCH).await?,
            Kind::Sagas => consume(SAGAS).await?,
            Kind::Relay => {
                let settings = [
                    ("ONCEBOX_HTTP_LISTEN", "off".to_owned()),
                    ("ONCEBOX_TRACE_FILE", self.recording.file(self.members.len())),
                ];
                let environment = [&servers[..], &settings].concat();
                Program::start("oncebox", &["relay"], &environment).await?
            }
            Kind::Cashier => {
                let cashiers = [
                    ("STREAM", STREAM.to_owned()),
                    ("SUBJECT_PREFIX", "chaos.".to_owned()),
                    ("GATEWAY", format!("127.0.0.1:{}", self.gateway_port)),
                    ("LEASE_SECONDS", LEASE.as_secs().to_string()),
                ];
                Program::start("cashier", &[], &[&servers[..], &cashiers, &recorded].concat()).await?
            }
        };
        self.members.push(Member::new(kind, program, line, LEASE));
        Ok(())
    }

    /// Whether the consumers have settled all that is in the stream.
    pub(crate) async fn is_idle(&self) -> bool {
        for durable in DURABLES {
            if !is_settled(&self.stream, durable).await {
                return false;
            }
        }
        true
    }

    pub(crate) async fn count(&self, what: &str) -> Result<i64> {
        let sql = format!("SELECT count(*) FROM {what}");
        let row = self.pool.get().await?.query_one(&sql, &[]).await;
        Ok(row.with_context(|| format!("count {what}"))?.get(0))
    }

    /// Messages that the relays have not settled, by the definition of the cursor; and those set
    /// aside.
    pub(crate) async fn backlog(&self) -> Result<i64> {
        let due = "oncebox.message AS m JOIN oncebox.lane_cursor AS c USING (lane)
                   WHERE m.id > c.floor AND (m.id > c.high OR NOT pg_visible_in_snapshot(m.xact, c.snap))";
        Ok(self.count(due).await? + self.count("oncebox.parked").await?)
    }

    /// Holds the recordings of the relays, which have ended, to the specification, and hears its
    /// verdict over those of the consumers; returns how often each action occurred.
    pub(crate) async fn accepted(self, consumers: &Verdict) -> Result<[String; 2]> {
        let of = Circumstances { expected: &["takeovers"], ..Circumstances::default() };
        let relays = self.recording.accepted(&**self.pool.get().await?, of).await?;
        Ok([relays, self.consuming.right(consumers)?])
    }

    /// The specification's verdict over the recordings of the consumers, which have ended, with the
    /// lines of those who have counted effects.
    pub(crate) async fn of_consumers(&self, counted: &[String]) -> Result<Verdict> {
        self.consuming.of_consumers(&**self.pool.get().await?, counted, &EXPECTED).await
    }

    /// How often each action of the consumers occurred, or why the specification rejects them.
    pub(crate) fn of_consumers_right(self, consumers: &Verdict) -> Result<String> {
        self.consuming.right(consumers)
    }

    /// How often JetStream has delivered messages to a durable consumer.
    pub(crate) async fn deliveries(&self, durable: &str) -> Result<u64> {
        Ok(self.stream.consumer_info(durable).await?.delivered.consumer_sequence)
    }
}

impl Target {
    fn of(url: &str) -> Result<Self> {
        let config: tokio_postgres::Config = url.parse().context("read the database URL")?;
        let port = config.get_ports().first().copied().context("the database URL has no port")?;
        let name = config.get_dbname().context("the database URL names no database")?.to_owned();
        Ok(Self { port, name })
    }
}

/// The duplicate window is so short that the stream keeps messages which are sent twice: the inbox
/// must find them.
fn stream_config(is_atomic: bool) -> Config {
    Config {
        allow_atomic_publish: is_atomic,
        name: STREAM.to_owned(),
        subjects: vec!["chaos.>".to_owned()],
        duplicate_window: Duration::from_millis(100),
        ..Config::default()
    }
}
