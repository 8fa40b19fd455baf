//! The life of a relay: connect, check, run the loops, drain.

use std::{error::Error, future::poll_fn, net::SocketAddr, sync::Arc, time::Duration};

use deadpool_postgres::{ManagerConfig, Pool, RecyclingMethod, Runtime};
use oncebox_schema::{VersionError, check_version};
use tokio::{net::TcpListener, sync::watch, task::JoinSet, time::timeout};
use tokio_postgres::{
    AsyncMessage, Client,
    error::{DbError, SqlState},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    config::Config,
    http,
    link::{self, Link, LinkError, Server},
    maintenance::Maintainer,
    metrics::Metrics,
    store::{Store, StoreError},
    streams,
    systemd::Systemd,
    traces::Traces,
    wake,
    worker::{Budget, Worker},
};

/// How long a shutdown waits for the collector of spans, at most.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// The end of a relay waits no longer for systemd to be told.
const LAST_WORDS_MAX: Duration = Duration::from_secs(1);

/// Why a relay did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// PostgreSQL cannot be reached.
    #[error("PostgreSQL at {target} cannot be reached")]
    PostgresUnreachable {
        /// Hosts and database.
        target: String,
        /// What went wrong.
        source: Box<dyn Error + Send + Sync>,
    },
    /// PostgreSQL answers, and does not let us in: the user, the password, the database, or pg_hba.conf.
    #[error("PostgreSQL at {target} refuses the login")]
    PostgresRefused {
        /// Hosts and database.
        target: String,
        /// What PostgreSQL said.
        source: Box<dyn Error + Send + Sync>,
    },
    /// NATS cannot be reached.
    #[error("NATS at {target} cannot be reached")]
    NatsUnreachable {
        /// The URL without credentials.
        target: String,
        /// What went wrong.
        source: Box<dyn Error + Send + Sync>,
    },
    /// NATS answers, and does not let us in.
    #[error("NATS at {target} refuses the login")]
    NatsRefused {
        /// The URL without credentials.
        target: String,
        /// What NATS said.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A stream is not as the configuration declares it.
    #[error("{0}")]
    Stream(String),
    /// The database has another schema version.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// A statement failed.
    #[error("PostgreSQL failed a pass")]
    Postgres(#[source] Box<dyn Error + Send + Sync>),
    /// PostgreSQL did not answer.
    #[error("PostgreSQL did not answer within 45 seconds")]
    PostgresTimeout,
    /// A dead letter could not be sent back: it stays where it is, and those before it are retried.
    #[error("send dead letter {id} back to JetStream; it and those after it stay as they are")]
    Letter {
        /// Its id.
        id: i64,
        /// What NATS said, or what is wrong with the letter.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The HTTP address cannot be bound.
    #[error("listen on {address} for HTTP; choose another with --http-listen, or off")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Passes under way did not end within the grace period; what they had not settled is sent again.
    #[error("passes under way did not end within {0:?}; what they had not settled is sent again")]
    Grace(Duration),
    /// The exporter of spans cannot be set up.
    #[error("set up the export of spans: {0}")]
    Traces(String),
    /// A task ended early: a bug of ours, or a panic.
    #[error("a task of the relay ended early")]
    TaskEnded,
}

impl RelayError {
    pub(crate) fn store(error: StoreError) -> Self {
        Self::Postgres(Box::new(error))
    }

    /// Why there is no connection to PostgreSQL.
    pub(crate) fn no_postgres(config: &Config, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let (target, source) = (config.postgres_target(), source.into());
        if refuses_login(&*source) {
            Self::PostgresRefused { target, source }
        } else {
            Self::PostgresUnreachable { target, source }
        }
    }

    /// Why there is no connection to NATS.
    pub(crate) fn no_nats(config: &Config, error: LinkError) -> Self {
        let target = config.nats_target();
        if error.is_refused_login() {
            Self::NatsRefused { target, source: error.into() }
        } else {
            Self::NatsUnreachable { target, source: error.into() }
        }
    }
}

fn refuses_login(error: &(dyn Error + 'static)) -> bool {
    let code = error.downcast_ref::<tokio_postgres::Error>().and_then(tokio_postgres::Error::code);
    // Class 28 is about logins. The others: there is no such database, and no CONNECT on it.
    let others = [&SqlState::INVALID_CATALOG_NAME, &SqlState::INSUFFICIENT_PRIVILEGE];
    code.is_some_and(|code| code.code().starts_with("28") || others.contains(&code))
        || error.source().is_some_and(refuses_login)
}

/// An error with all its sources on one line.
#[must_use]
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Connects to PostgreSQL as configured, for one-off commands.
///
/// The connection ends with the client; its task is handed back to be awaited or aborted by the caller's runtime.
///
/// # Errors
/// PostgreSQL cannot be reached, or does not let us in.
pub async fn connect_postgres(config: &Config, tasks: &mut JoinSet<()>) -> Result<Client, RelayError> {
    // The configuration's own timeout ends with the TCP connection.
    let connecting = timeout(config.database.connect_timeout(), config.database.connect()).await;
    let connected = connecting.map_err(|elapsed| RelayError::no_postgres(config, elapsed))?;
    let (client, mut connection) = connected.map_err(|error| RelayError::no_postgres(config, error))?;
    tasks.spawn(async move {
        while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
            match message {
                Ok(AsyncMessage::Notice(notice)) => tell(&notice),
                Ok(_) => {}
                Err(error) => return tracing::debug!(%error, "connection to PostgreSQL"),
            }
        }
    });
    Ok(client)
}

/// Passes on what PostgreSQL remarks. Statements of ours that raise a warning say what to do about it.
fn tell(notice: &DbError) {
    let (message, hint) = (notice.message(), notice.hint().unwrap_or_default());
    match notice.severity() {
        "WARNING" => warn!("PostgreSQL warns: {message}. {hint}"),
        severity => tracing::debug!(severity, hint, "PostgreSQL says: {message}"),
    }
}

/// A relay that has connected to both servers and checked the schema.
#[derive(Debug)]
pub struct Relay {
    config: Config,
    store: Arc<Store>,
    server: Server,
    first_link: Link,
    metrics: Metrics,
    systemd: Option<Systemd>,
}

impl Relay {
    /// Runs a relay until `shutdown` resolves, then drains it within the configured grace period.
    ///
    /// # Errors
    /// See [`RelayError`]. Once running, a server that goes away is no error: the relay waits for it.
    pub async fn run(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), RelayError> {
        Self::connect(config).await?.serve(shutdown).await
    }

    /// Connects to both servers, once, and checks the schema's version.
    ///
    /// # Errors
    /// A server cannot be reached or does not let us in, or the schema has another version.
    pub async fn connect(config: Config) -> Result<Self, RelayError> {
        // One connection for each worker, one for marks, one for maintenance.
        let pool = pool(&config, config.workers + 2);
        let connection = pool.get().await.map_err(|error| RelayError::no_postgres(&config, error))?;
        check_version(&**connection, &config.schema).await?;
        drop(connection);
        let store = Arc::new(Store::new(pool, config.schema.clone()).await.map_err(RelayError::store)?);
        store.look_for_pooler().await.map_err(RelayError::store)?;
        let metrics = Metrics::new();
        let server = Server::new(&config, format!("oncebox relay {}", config.schema));
        let first_link =
            server.connect(&metrics).await.map_err(|error| RelayError::no_nats(&config, error))?;
        metrics.nats_connected.set(1);
        streams::ready(&config.streams, &first_link).await?;
        Ok(Self { config, store, server, first_link, metrics, systemd: None })
    }

    /// The same relay, that tells systemd how it is while it serves.
    #[must_use]
    pub fn telling(mut self, systemd: Option<Systemd>) -> Self {
        self.systemd = systemd;
        self
    }

    /// A worker by itself, on this relay's first link to NATS, to make passes one at a time.
    #[must_use]
    pub fn worker(&self) -> Worker {
        let (_, links) = watch::channel(Some(Arc::new(self.first_link.clone())));
        let (store, tuning) = (Arc::clone(&self.store), self.config.tuning.clone());
        let budget = Budget::new(&tuning);
        Worker::new(store, links, tuning, self.metrics.clone(), None, budget, false)
    }

    /// This relay's maintenance by itself, to make its steps one at a time.
    #[must_use]
    pub fn maintainer(&self) -> Maintainer {
        maintainer(&self.config, &self.store, &self.metrics)
    }

    /// Runs the loops until `shutdown` resolves, then drains.
    ///
    /// # Errors
    /// The HTTP address cannot be bound, or the grace period was too short.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<(), RelayError> {
        let Self { config, store, server, first_link, metrics, systemd } = self;
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for weakness in &config.weaknesses {
            warn!("{weakness}");
        }
        if let Some(address) = config.http_listen {
            let bound = TcpListener::bind(address).await;
            let listener = bound.map_err(|source| RelayError::Listen { address, source })?;
            let address = listener.local_addr().unwrap_or(address);
            info!(%address, "serving /livez, /readyz and /metrics");
            let scraped = Arc::new(store.beside(pool(&config, 1)));
            tasks.spawn(http::serve(listener, scraped, metrics.clone(), config.stuck_after, stop.clone()));
        }
        let (link_sender, links) = watch::channel(None);
        tasks.spawn(link::maintain(server, first_link, link_sender, metrics.clone(), stop.clone()));
        let (wake_sender, wake) = watch::channel(0);
        tasks.spawn(wake::listen(config.database.clone(), Arc::clone(&store), wake_sender, stop.clone()));
        let traces = trace(&config, &metrics, &mut tasks, &stop)?;
        let budget = Budget::new(&config.tuning);
        for number in 0..config.workers {
            let (store, links, tuning) = (Arc::clone(&store), links.clone(), config.tuning.clone());
            let (metrics, traces, budget) = (metrics.clone(), traces.clone(), budget.clone());
            let worker = Worker::new(store, links, tuning, metrics, traces, budget, number == 0);
            tasks.spawn(worker.run(wake.clone(), stop.clone()));
        }
        // The queue ends with the last worker.
        drop(traces);
        tasks.spawn(maintainer(&config, &store, &metrics).run(stop.clone()));
        // Outlives the loops: their drain is watched as well.
        let (mut telling, over) = (JoinSet::new(), CancellationToken::new());
        if let Some(systemd) = systemd {
            telling.spawn(systemd.tell(metrics.clone(), config.stuck_after, stop.clone(), over.clone()));
        }
        info!(postgres = config.postgres_target(), nats = config.nats_target(), schema = %config.schema, "relay is running");
        let ended_early = tokio::select! {
            () = shutdown => false,
            _ = tasks.join_next() => true,
        };
        stop.cancel();
        let drained = timeout(config.grace, async { while tasks.join_next().await.is_some() {} }).await;
        over.cancel();
        let _ = timeout(LAST_WORDS_MAX, telling.join_next()).await;
        if ended_early {
            return Err(RelayError::TaskEnded);
        }
        if drained.is_err() {
            warn!(grace = ?config.grace, "passes under way did not end in time; what they had not settled is sent again");
            return Err(RelayError::Grace(config.grace));
        }
        info!("relay has drained");
        Ok(())
    }
}

/// Starts to export spans, when a collector is configured.
fn trace(
    config: &Config,
    metrics: &Metrics,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> Result<Option<Traces>, RelayError> {
    let Some(endpoint) = &config.otlp_endpoint else { return Ok(None) };
    let (traces, export) = Traces::new(endpoint, metrics).map_err(RelayError::Traces)?;
    tasks.spawn(export.run(stop.clone(), FLUSH_MAX.min(config.grace / 2)));
    info!(endpoint, "spans of traced messages go to the collector");
    Ok(Some(traces))
}

fn maintainer(config: &Config, store: &Arc<Store>, metrics: &Metrics) -> Maintainer {
    let dead_blocks = config.tuning.read.dead_blocks;
    Maintainer::new(Arc::clone(store), config.retention, dead_blocks, metrics.clone())
}

/// At most so many connections; every wait bounded.
fn pool(config: &Config, size: usize) -> Pool {
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = config.database.manager(recycling);
    Pool::builder(manager)
        .max_size(size)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(Duration::from_secs(10)))
        .create_timeout(Some(config.database.connect_timeout()))
        .recycle_timeout(Some(Duration::from_secs(10)))
        .build()
        .expect("timeouts are given a runtime")
}
