//! How every connection to PostgreSQL is made: TLS as configured, the first of several hosts that takes writes.
//!
//! The hosts are tried in the order given, each within a deadline of its own: a primary that hangs must not use up
//! the time in which the next one would have answered.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::{Connect, Manager, ManagerConfig};
use futures_util::{FutureExt as _, future::BoxFuture};
use tokio::{runtime::Handle, task::JoinHandle, time::timeout};
use tokio_postgres::{
    Client, Config, Error, Socket,
    config::{Host, TargetSessionAttrs},
    tls::MakeTlsConnect,
};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Addresses of one cluster at most; with more, the deadline of a pass would pass before the last was tried.
pub(crate) const HOSTS_MAX: usize = 6;
/// To connect to one of several hosts, until it is ready for statements.
const HOST_TIMEOUT: Duration = Duration::from_secs(5);
/// To connect at all, from the first packet until it is ready for statements.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The connection that a client's task drives.
pub(crate) type Connection =
    tokio_postgres::Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// One database, at one or several addresses. Clones share it.
#[derive(Clone)]
pub(crate) struct Database {
    /// As configured, to show.
    whole: Config,
    /// One for each host.
    hosts: Arc<[Config]>,
    tls: MakeRustlsConnect,
}

impl Database {
    /// Of several hosts, only one that takes writes will do: the rest are standbys.
    pub(crate) fn new(mut whole: Config, tls: MakeRustlsConnect) -> Self {
        if whole.get_hosts().len() > 1 {
            whole.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        let count = whole.get_hosts().len();
        let hosts = (0..count).map(|number| one_host(&whole, number)).collect();
        Self { whole, hosts, tls }
    }

    /// The first host that lets us in.
    pub(crate) async fn connect(&self) -> Result<(Client, Connection), Error> {
        if let [only] = &*self.hosts {
            return only.connect(self.tls.clone()).await;
        }
        let mut refusal = None;
        for host in self.hosts.iter() {
            match timeout(HOST_TIMEOUT, host.connect(self.tls.clone())).await {
                Ok(Ok(connected)) => return Ok(connected),
                Ok(Err(error)) => {
                    tracing::debug!(host = target(host), error = %crate::error_chain(&error), "connect");
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

    /// The same with sessions that are not taken for a relay's.
    pub(crate) fn of_operator(&self) -> Self {
        let mut whole = self.whole.clone();
        let name = match whole.get_application_name() {
            None | Some("oncebox relay") => "oncebox operator".to_owned(),
            // As long as PostgreSQL keeps it whole.
            Some(name) => name.chars().take(54).collect::<String>() + " operator",
        };
        whole.application_name(name);
        Self::new(whole, self.tls.clone())
    }

    /// The deadline for [`Database::connect`]: every host gets its turn.
    pub(crate) fn connect_timeout(&self) -> Duration {
        let hosts = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX);
        CONNECT_TIMEOUT.max(HOST_TIMEOUT * hosts + Duration::from_secs(2))
    }

    /// What a pool makes its connections with.
    pub(crate) fn manager(&self, config: ManagerConfig) -> Manager {
        Manager::from_connect(self.whole.clone(), self.clone(), config)
    }

    /// Hosts and database, with no secret, for errors and logs.
    pub(crate) fn target(&self) -> String {
        target(&self.whole)
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.target())
    }
}

impl Connect for Database {
    fn connect(&self, _: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), Error>> {
        async {
            let (client, connection) = Self::connect(self).await?;
            // The pool's object ends it; what breaks shows in the client.
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

/// The same configuration for one of its hosts.
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

fn port(config: &Config, number: usize) -> u16 {
    let ports = config.get_ports();
    ports.get(number).or(ports.first()).copied().unwrap_or(5432)
}

fn target(config: &Config) -> String {
    let hosts = config.get_hosts().iter().enumerate().map(|(number, host)| {
        let port = port(config, number);
        match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            Host::Unix(path) => format!("{}:{port}", path.display()),
        }
    });
    let hosts: Vec<String> = hosts.collect();
    format!("{}/{}", hosts.join(","), config.get_dbname().or(config.get_user()).unwrap_or_default())
}
