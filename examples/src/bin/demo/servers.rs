//! Where the demo takes place: its own servers, or databases and a stream of its own on given ones.

use std::time::Duration;

use anyhow::{Context, Result};
use async_nats::jetstream::{self, stream};
use deadpool_postgres::Pool;
use oncebox_examples::config;
use oncebox_tests::{Nats, Postgres, database_url};

use crate::{clients::Progress, watchdog::Watchdog};

// A request that is under way when nats-server is restarted gets no answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// A database for each service.
const SERVICES: [&str; 6] = ["shop", "inventory", "billing", "shipping", "orders", "payments"];

/// A database for each service, and a stream. Servers that are ours end when this is dropped.
#[derive(Debug)]
pub(crate) struct Servers {
    /// Unique to this run: begins the names of the databases, the stream and the subjects.
    pub(crate) name: String,
    server_url: String,
    pub(crate) nats_url: String,
    /// Ends the processes beside the servers.
    pub(crate) watchdog: Watchdog,
    admin: Pool,
    // None when the environment names the servers.
    own: Option<Own>,
    /// The stream's last sequence when its store was copied, or shortly after.
    backed_up: u64,
}

#[derive(Debug)]
struct Own {
    _postgres: Postgres,
    nats: Nats,
}

impl Servers {
    pub(crate) async fn start() -> Result<Self> {
        let (server_url, nats_url, own) =
            match (config::variable("DATABASE_URL"), config::variable("NATS_URL")) {
                (Some(database), Some(nats)) => (database, nats, None),
                (None, None) => {
                    let postgres = Postgres::start().await?;
                    let nats = Nats::start().await?;
                    (postgres.url("postgres"), nats.url(), Some(Own { _postgres: postgres, nats }))
                }
                _ => anyhow::bail!("set both DATABASE_URL and NATS_URL, or neither"),
            };
        let name = format!("demo_{}", &uuid::Uuid::new_v4().simple().to_string()[..8]);
        let admin = config::pool(&server_url, 1)?;
        let servers =
            Self { name, server_url, nats_url, watchdog: Watchdog::start()?, admin, own, backed_up: 0 };
        if let Err(error) = servers.create().await {
            servers.clean_up().await?;
            return Err(error);
        }
        Ok(servers)
    }

    async fn create(&self) -> Result<()> {
        for database in self.databases() {
            let create = format!("CREATE DATABASE {database}");
            self.admin.get().await.context("connect to PostgreSQL")?.batch_execute(&create).await?;
        }
        let config = stream::Config {
            name: self.name.clone(),
            subjects: vec![self.subject(">")],
            ..Default::default()
        };
        self.jetstream().await?.create_stream(config).await.context("create the stream")?;
        Ok(())
    }

    /// The database of a service.
    pub(crate) fn url(&self, service: &str) -> String {
        database_url(&self.server_url, &format!("{}_{service}", self.name))
    }

    /// Whether the demo started the servers itself.
    pub(crate) fn are_ours(&self) -> bool {
        self.own.is_some()
    }

    /// The beginning of all subjects of this run.
    pub(crate) fn prefix(&self) -> String {
        format!("{}.", self.name)
    }

    pub(crate) fn subject(&self, tail: &str) -> String {
        format!("{}{tail}", self.prefix())
    }

    pub(crate) async fn jetstream(&self) -> Result<jetstream::Context> {
        let client = async_nats::connect(&self.nats_url).await.context("connect to NATS")?;
        let mut jetstream = jetstream::new(client);
        jetstream.set_timeout(REQUEST_TIMEOUT);
        Ok(jetstream)
    }

    /// Restarts nats-server; false when it is not ours.
    pub(crate) async fn restart_nats(&mut self) -> Result<bool> {
        let Some(own) = &mut self.own else { return Ok(false) };
        own.nats.restart().await?;
        Ok(true)
    }

    /// Restarts nats-server, and copies its store meanwhile; false when it is not ours.
    pub(crate) async fn back_up_nats(&mut self) -> Result<bool> {
        let Some(own) = &mut self.own else { return Ok(false) };
        own.nats.back_up().await?;
        self.backed_up = self.last_sequence().await?;
        Ok(true)
    }

    /// Whether there is something to lose: a message that the copy of the store lacks.
    pub(crate) async fn is_ahead_of_copy(&self) -> Result<bool> {
        Ok(self.last_sequence().await? > self.backed_up)
    }

    /// Kills nats-server, and starts it with the copy of its store. Returns how many messages are
    /// gone, at least; none when it is not ours. No task reads meanwhile: see [`Progress::losses`].
    pub(crate) async fn lose_tail(&mut self, progress: &Progress) -> Result<u64> {
        let mut losses = progress.losses.lock().await;
        let last = self.last_sequence().await?;
        let Some(own) = &mut self.own else { return Ok(0) };
        own.nats.roll_back().await?;
        own.nats.resume().await?;
        *losses += 1;
        Ok(last.saturating_sub(self.backed_up))
    }

    async fn last_sequence(&self) -> Result<u64> {
        let stream = self.jetstream().await?.get_stream(&self.name).await.context("look at the stream")?;
        Ok(stream.cached_info().state.last_sequence)
    }

    /// Deletes our databases and streams on servers that are not ours. The connections of the demo
    /// itself may still be open.
    pub(crate) async fn clean_up(self) -> Result<()> {
        if self.own.is_some() {
            return Ok(());
        }
        for database in self.databases() {
            let drop = format!("DROP DATABASE IF EXISTS {database} WITH (FORCE)");
            self.admin.get().await.context("connect to PostgreSQL")?.batch_execute(&drop).await?;
        }
        self.jetstream().await?.delete_stream(&self.name).await.context("delete the stream")?;
        Ok(())
    }

    fn databases(&self) -> [String; SERVICES.len()] {
        SERVICES.map(|service| format!("{}_{service}", self.name))
    }
}
