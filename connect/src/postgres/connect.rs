//! How every connection to PostgreSQL is made: TLS as configured, the first of several hosts that
//! takes writes.
//!
//! The hosts are tried in the order given, each within a deadline of its own: a primary that hangs
//! must not use up the time in which the next one would have answered.

use std::{future::poll_fn, sync::Arc, time::Duration};

use deadpool_postgres::{
    Connect, Hook, HookError, Manager, ManagerConfig, Pool, QueueMode, RecyclingMethod, Runtime,
};
use futures_util::{FutureExt as _, future::BoxFuture};
use tokio::{
    runtime::Handle,
    task::{JoinHandle, JoinSet},
    time::timeout,
};
use tokio_postgres::{
    AsyncMessage, Client, Config, Error, Socket, config::Host, error::DbError, tls::MakeTlsConnect,
};
use tokio_postgres_rustls::MakeRustlsConnect;
use tracing::warn;

use super::pooler;
use crate::{
    config::{
        OutboxConfig,
        database::{Database, port, target},
    },
    error::{NoConnection, RelayError, error_chain},
};

/// How long connecting to one of several hosts may take, until it is ready for statements.
const HOST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long connecting may take in all, from the first packet until statements can be sent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The connection that a client's task drives.
pub type PostgresConnection =
    tokio_postgres::Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// Connects to one database, at one or several addresses. Clones share it.
#[derive(Clone, Debug)]
pub struct Connector {
    database: Database,
    /// One for each host.
    hosts: Arc<[Config]>,
}

impl Connector {
    /// With the hosts in the order given.
    pub fn new(database: &Database) -> Self {
        let count = database.postgres.get_hosts().len();
        let hosts = (0..count).map(|number| one_host(&database.postgres, number)).collect();
        Self { database: database.clone(), hosts }
    }

    /// The first host that lets us in.
    pub async fn connect(&self) -> Result<(Client, PostgresConnection), Error> {
        if let [only] = &*self.hosts {
            return self.database.with_password(only).connect(self.database.tls.clone()).await;
        }
        let mut refusal = None;
        for host in self.hosts.iter() {
            let now = self.database.with_password(host);
            match timeout(HOST_TIMEOUT, now.connect(self.database.tls.clone())).await {
                Ok(Ok(connected)) => return Ok(connected),
                Ok(Err(error)) => {
                    tracing::debug!(host = target(host), error = %error_chain(&error), "connect");
                    refusal = Some(error);
                }
                Err(_) => tracing::debug!(host = target(host), "does not answer"),
            }
        }
        match refusal {
            Some(error) => Err(error),
            // None refused, none answered: the caller's deadline, `connect_timeout`, says so.
            None => std::future::pending().await,
        }
    }

    /// The deadline for [`Connector::connect`]: every host gets its turn.
    pub fn connect_timeout(&self) -> Duration {
        let hosts = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
        CONNECT_TIMEOUT.max(HOST_TIMEOUT * hosts + Duration::from_secs(2))
    }

    /// The connector of a pool.
    pub fn manager(&self, config: ManagerConfig) -> Manager {
        Manager::from_connect(self.database.postgres.clone(), self.clone(), config)
    }
}

impl Connect for Connector {
    fn connect(&self, _: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), Error>> {
        async {
            let (client, connection) = Self::connect(self).await?;
            // The pool's object ends it; a break shows in the client.
            let driving = Handle::current().spawn(async {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "connection to PostgreSQL");
                }
            });
            Ok((client, driving))
        }
        .boxed()
    }
}

/// The configuration reduced to one of its hosts.
fn one_host(whole: &Config, number: usize) -> Config {
    let mut one = Config::new();
    match whole.get_hosts().get(number) {
        Some(Host::Tcp(name)) => drop(one.host(name)),
        Some(Host::Unix(path)) => drop(one.host_path(path)),
        None => {}
    }
    if let Some(address) = whole.get_hostaddrs().get(number) {
        one.hostaddr(*address);
    }
    one.port(port(whole, number))
        .ssl_mode(whole.get_ssl_mode())
        .ssl_negotiation(whole.get_ssl_negotiation())
        .keepalives(whole.get_keepalives())
        .keepalives_idle(whole.get_keepalives_idle())
        .target_session_attrs(whole.get_target_session_attrs())
        .channel_binding(whole.get_channel_binding())
        .load_balance_hosts(whole.get_load_balance_hosts());
    whole.get_user().map(|text| one.user(text));
    whole.get_password().map(|text| one.password(text));
    whole.get_dbname().map(|text| one.dbname(text));
    whole.get_options().map(|text| one.options(text));
    whole.get_application_name().map(|text| one.application_name(text));
    whole.get_connect_timeout().map(|time| one.connect_timeout(*time));
    whole.get_tcp_user_timeout().map(|time| one.tcp_user_timeout(*time));
    whole.get_keepalives_interval().map(|time| one.keepalives_interval(time));
    whole.get_keepalives_retries().map(|count| one.keepalives_retries(count));
    one
}

/// Connects to PostgreSQL as configured, for one-off commands.
///
/// The connection ends with the client; its task is handed back to be awaited or aborted by the
/// caller's runtime.
///
/// # Errors
/// PostgreSQL cannot be reached, or does not let us in.
pub async fn connect_postgres(config: &OutboxConfig, tasks: &mut JoinSet<()>) -> Result<Client, RelayError> {
    let connector = Connector::new(&config.database);
    // The configuration's own timeout ends with the TCP connection.
    let connecting = timeout(connector.connect_timeout(), connector.connect()).await;
    let connected =
        connecting.map_err(|_| RelayError::no_postgres(config.postgres_target(), NoConnection::Silent))?;
    let (client, mut connection) =
        connected.map_err(|error| RelayError::no_postgres(config.postgres_target(), error))?;
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

/// Passes on the notices of PostgreSQL. Statements of ours that raise a warning name its remedy.
fn tell(notice: &DbError) {
    let (message, hint) = (notice.message(), notice.hint().unwrap_or_default());
    match notice.severity() {
        "WARNING" => warn!("PostgreSQL warns: {message}. {hint}"),
        severity => tracing::debug!(severity, hint, "PostgreSQL says: {message}"),
    }
}

/// A pool of at most `size` connections, with a limit for every wait.
pub fn pool(database: &Database, size: usize) -> Pool {
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let connector = Connector::new(database);
    let manager = connector.manager(recycling);
    Pool::builder(manager)
        .max_size(size)
        // The connections that are used least are closed when they are idle.
        .queue_mode(QueueMode::Lifo)
        .runtime(Runtime::Tokio1)
        .post_create(pooler::mark())
        // Before deadpool warns of it: PostgreSQL may end idle sessions, and does when it restarts.
        .pre_recycle(Hook::sync_fn(|client, _| match client.is_closed() {
            true => Err(HookError::message("PostgreSQL has ended the session")),
            false => Ok(()),
        }))
        .wait_timeout(Some(Duration::from_secs(10)))
        .create_timeout(Some(connector.connect_timeout()))
        .recycle_timeout(Some(Duration::from_secs(10)))
        .build()
        .expect("timeouts are given a runtime")
}
