//! The PostgreSQL and the nats-server of this run, and their functions for the measurements.
//!
//! Both belong to this process and end with it. PostgreSQL keeps its default durability (a commit
//! waits for the disk), JetStream its default too (one replica in files). [`SETTINGS`] lists the
//! differences from the defaults, which an operator would choose as well.

use std::{
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context, bail};
use async_nats::jetstream::{
    self,
    stream::{Config as StreamConfig, StorageType, Stream},
};
use oncebox_schema::{Lanes, SchemaName, migrate};
use oncebox_tests::{Nats, Postgres};
use tokio::{task::JoinSet, time::Instant};
use tokio_postgres::{Client, NoTls};

/// All subjects of the bench.
pub(crate) const SUBJECTS: &str = "bench.>";
/// The one stream.
pub(crate) const STREAM: &str = "BENCH";
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The first five undo the relaxed settings of test servers; the others are common practice.
const SETTINGS: &[(&str, &str)] = &[
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("full_page_writes", "on"),
    ("wal_level", "replica"),
    ("autovacuum", "on"),
    ("shared_buffers", "512MB"),
    ("max_wal_size", "4GB"),
    ("max_connections", "500"),
];

/// How a relay publishes; see `publish` in docs/configuration.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publish {
    Pipelined,
    Atomic,
}

impl Publish {
    /// A relay's configuration file that says so.
    pub(crate) fn file(self) -> String {
        let way = match self {
            Self::Pipelined => "pipelined",
            Self::Atomic => "atomic",
        };
        format!("[[stream]]\nname = {STREAM:?}\nsubjects = [{SUBJECTS:?}]\npublish = {way:?}\n")
    }
}

/// Both servers.
#[derive(Debug)]
pub(crate) struct Servers {
    postgres: Postgres,
    nats: Nats,
    pub(crate) schema: SchemaName,
    databases: AtomicU32,
}

impl Servers {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        Ok(Self {
            postgres: Postgres::start_with(SETTINGS).await?,
            nats: Nats::start().await?,
            schema: SchemaName::default(),
            databases: AtomicU32::new(0),
        })
    }

    pub(crate) fn database_url(&self, database: &str) -> String {
        self.postgres.url(database)
    }

    pub(crate) fn nats_url(&self) -> String {
        self.nats.url()
    }

    pub(crate) fn postgres_pid(&self) -> u32 {
        self.postgres.pid()
    }

    pub(crate) fn nats_pid(&self) -> u32 {
        self.nats.pid()
    }

    /// The statements of a database in PostgreSQL's log, with the milliseconds of each.
    pub(crate) fn statements(&self, database: &str) -> Vec<(String, f64)> {
        let place = format!("] {database} LOG:  duration: ");
        let log = self.postgres.log();
        let lines = log.lines().filter_map(|line| line.split_once(&place)?.1.split_once(" ms  "));
        lines.filter_map(|(took, text)| Some((text.to_owned(), took.parse().ok()?))).collect()
    }

    /// A session in no database of the bench, for orders to the whole server.
    pub(crate) async fn admin(&self) -> anyhow::Result<Session> {
        self.session("postgres").await
    }

    pub(crate) async fn session(&self, database: &str) -> anyhow::Result<Session> {
        let (client, connection) = tokio_postgres::connect(&self.database_url(database), NoTls)
            .await
            .context("connect to PostgreSQL")?;
        let mut task = JoinSet::new();
        task.spawn(async move {
            // The code that uses the client gets the error.
            let _ = connection.await;
        });
        Ok(Session { client, _task: task })
    }

    /// Several sessions in one database.
    pub(crate) async fn sessions(&self, database: &str, count: usize) -> anyhow::Result<Vec<Session>> {
        let mut sessions = Vec::with_capacity(count);
        for _ in 0..count {
            sessions.push(self.session(database).await?);
        }
        Ok(sessions)
    }

    /// A new database with Oncebox installed.
    pub(crate) async fn migrated(&self) -> anyhow::Result<String> {
        self.migrated_with(Lanes::default()).await
    }

    pub(crate) async fn migrated_with(&self, lanes: Lanes) -> anyhow::Result<String> {
        let database = self.empty().await?;
        let mut session = self.session(&database).await?;
        migrate(&mut session, &self.schema, lanes).await?;
        Ok(database)
    }

    /// A new database without Oncebox.
    pub(crate) async fn empty(&self) -> anyhow::Result<String> {
        let database = self.next_name();
        self.admin().await?.batch_execute(&format!("CREATE DATABASE {database}")).await?;
        Ok(database)
    }

    /// A copy of a database, byte by byte, on the disk when this returns.
    ///
    /// No session may be connected to `template`; a session that has just ended is waited for.
    pub(crate) async fn copy_of(&self, template: &str) -> anyhow::Result<String> {
        let database = self.next_name();
        let admin = self.admin().await?;
        let free = format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = '{template}'");
        within("the template to be free", Duration::from_secs(10), async || {
            Ok(admin.query_one(&free, &[]).await?.get::<_, bool>(0).then_some(()))
        })
        .await?;
        let copy = format!("CREATE DATABASE {database} TEMPLATE {template} STRATEGY file_copy");
        admin.batch_execute(&copy).await.context("copy the database")?;
        admin.batch_execute("CHECKPOINT").await?;
        Ok(database)
    }

    pub(crate) async fn drop_database(&self, database: &str) -> anyhow::Result<()> {
        let drop = format!("DROP DATABASE {database} WITH (FORCE)");
        self.admin().await?.batch_execute(&drop).await.context("drop the database")
    }

    fn next_name(&self) -> String {
        format!("bench_{}", self.databases.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) async fn nats(&self) -> anyhow::Result<async_nats::Client> {
        async_nats::connect(self.nats_url()).await.context("connect to NATS")
    }

    /// Another nats-server, with these lines in its block `jetstream`.
    pub(crate) async fn replace_nats(&mut self, jetstream: &str) -> anyhow::Result<()> {
        self.nats = Nats::start_with_jetstream(jetstream, "").await?;
        Ok(())
    }

    /// Kills it, as it is.
    pub(crate) async fn kill_nats(&mut self) {
        self.nats.kill().await;
    }

    /// Starts it again, with its store.
    pub(crate) async fn resume_nats(&mut self) -> anyhow::Result<()> {
        self.nats.resume().await
    }

    /// Restarts it, and copies its store meanwhile.
    pub(crate) async fn back_up_nats(&mut self) -> anyhow::Result<()> {
        self.nats.back_up().await
    }

    /// Kills it, and starts it with that copy: all that came since is lost.
    pub(crate) async fn roll_back_nats(&mut self) -> anyhow::Result<()> {
        self.nats.roll_back().await?;
        self.nats.resume().await
    }

    /// The stream of the bench, new and empty: one replica, in files.
    pub(crate) async fn fresh_stream(&self) -> anyhow::Result<Stream> {
        self.fresh_stream_for(Publish::Pipelined).await
    }

    /// A fresh stream that accepts messages published in this way.
    pub(crate) async fn fresh_stream_for(&self, publish: Publish) -> anyhow::Result<Stream> {
        let jetstream = jetstream::new(self.nats().await?);
        self.delete_stream().await?;
        let config = StreamConfig {
            allow_atomic_publish: publish == Publish::Atomic,
            name: STREAM.to_owned(),
            subjects: vec![SUBJECTS.to_owned()],
            storage: StorageType::File,
            num_replicas: 1,
            ..StreamConfig::default()
        };
        jetstream.create_stream(config).await.context("create the stream")
    }

    pub(crate) async fn delete_stream(&self) -> anyhow::Result<()> {
        let jetstream = jetstream::new(self.nats().await?);
        match jetstream.delete_stream(STREAM).await {
            Ok(_) => Ok(()),
            Err(error) if error.to_string().contains("not found") => Ok(()),
            Err(error) => Err(error).context("delete the stream"),
        }
    }
}

/// A connection to PostgreSQL with the task that drives it; both end when this is dropped.
#[derive(Debug)]
pub(crate) struct Session {
    client: Client,
    _task: JoinSet<()>,
}

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

/// Polls until there is something, an error, or the limit is reached.
pub(crate) async fn within<T>(
    what: &str,
    limit: Duration,
    mut poll: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = poll().await? {
            return Ok(found);
        }
        if Instant::now() > deadline {
            bail!("waited {limit:?} for {what}");
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
