//! `oncebox console`: pages and a JSON API over one database, or over all that a file names; and
//! the console that a relay serves beside its work.

use std::{
    fs::metadata,
    future::pending,
    net::{IpAddr, SocketAddr},
    os::unix::fs::PermissionsExt as _,
};

use clap::ArgMatches;
use oncebox_connect::config::{Config, ConfigError, NamedConfig, OutboxConfig};
use oncebox_console::{Member, Proxy, Settings, Token};

use super::{action, given, relay};

const LISTEN: ([u8; 4], u16) = ([127, 0, 0, 1], 8321);

/// The console of some databases.
pub(crate) struct Console {
    settings: Settings,
    members: Vec<Member>,
    token_file: Option<String>,
}

/// Serve pages and a JSON API: look, understand and act, over all databases
#[derive(clap::Args)]
pub(super) struct Alone {
    /// Where the console listens; beyond this machine only with a sign-in [default: 127.0.0.1:8321]
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    arguments: Arguments,
}

// The arguments of a console that a relay serves beside its work.
#[derive(clap::Args)]
pub(super) struct Beside {
    /// Serve the console there as well, over the databases that are there at the start
    #[arg(long, value_name = "IP:PORT")]
    console: Option<SocketAddr>,
    #[command(flatten)]
    arguments: Arguments,
}

#[derive(clap::Args)]
#[group(id = "arguments")]
struct Arguments {
    /// A name under which browsers reach it, beside localhost and addresses; may be given several
    /// times
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// Let operators retry, discard, pause and so on; without it the console only looks
    #[arg(long)]
    allow_actions: bool,
    /// Show payloads, which may hold what others must not see
    #[arg(long)]
    show_payloads: bool,
    /// Who acts, for the audit table, where nobody signs in [default: console]
    #[arg(long, value_name = "NAME", value_parser = action::bounded(255))]
    by: Option<String>,
    /// A file with a line NAME:ROLE:TOKEN for each person; roles are reader and operator
    #[arg(long, value_name = "FILE")]
    token_file: Option<String>,
    /// A header in which a proxy names who asks, such as X-Forwarded-User
    #[arg(long, value_name = "NAME", requires = "trusted_proxy")]
    trusted_header: Option<String>,
    /// The proxy's address; may be given several times
    #[arg(long, value_name = "IP", requires = "trusted_header")]
    trusted_proxy: Vec<IpAddr>,
    /// Who of those that the proxy names may act; may be given several times
    #[arg(long, value_name = "NAME", requires = "trusted_header")]
    operator: Vec<String>,
}

impl Console {
    /// The console of one database.
    ///
    /// # Errors
    /// The settings are not safe, or the file of tokens has mistakes.
    pub(super) fn new(
        flags: &ArgMatches,
        outbox: OutboxConfig,
        config: Option<Config>,
    ) -> Result<Self, ConfigError> {
        let Alone { listen, arguments } = given(flags);
        Self::of(arguments, listen.unwrap_or_else(|| LISTEN.into()), vec![lone(outbox, config)])
    }

    /// The console that the relay of this database serves as well, if it is told to.
    ///
    /// # Errors
    /// The same.
    pub(super) fn beside_one(flags: &ArgMatches, config: &Config) -> Result<Option<Self>, ConfigError> {
        Self::beside(flags, || vec![lone(config.outbox().clone(), Some(config.clone()))])
    }

    /// The same of several databases.
    ///
    /// # Errors
    /// The same.
    pub(super) fn beside_many(flags: &ArgMatches, all: &[NamedConfig]) -> Result<Option<Self>, ConfigError> {
        let member = |NamedConfig { name, config, .. }: &NamedConfig| Member {
            name: name.clone(),
            outbox: config.outbox().clone(),
            config: Some(config.clone()),
        };
        Self::beside(flags, || all.iter().map(member).collect())
    }

    fn beside(
        flags: &ArgMatches,
        members: impl FnOnce() -> Vec<Member>,
    ) -> Result<Option<Self>, ConfigError> {
        let Beside { console, arguments } = given(flags);
        console.map(|listen| Self::of(arguments, listen, members())).transpose()
    }

    fn of(arguments: Arguments, listen: SocketAddr, members: Vec<Member>) -> Result<Self, ConfigError> {
        let token_file = arguments.token_file.clone();
        Ok(Self { settings: settings(arguments, listen)?, members, token_file })
    }

    /// The console of all of these; each has one database.
    pub(super) fn join(all: impl Iterator<Item = (String, Self)>) -> Option<Self> {
        all.map(|(name, mut one)| {
            one.members.iter_mut().for_each(|member| member.name.clone_from(&name));
            one
        })
        .reduce(|mut first, other| {
            first.members.extend(other.members);
            first
        })
    }

    pub(super) async fn run(self) -> anyhow::Result<u8> {
        let shutdown = relay::shutdown_signal("the console")?;
        self.serve(shutdown).await.map(|()| 0)
    }

    async fn serve(self, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
        let listen = self.settings.listen;
        // Kubernetes mounts secrets so, and then no other account is near: not refused.
        let is_open = |path: &str| metadata(path).is_ok_and(|of| of.permissions().mode() & 0o004 != 0);
        if let Some(path) = self.token_file.as_deref().filter(|path| is_open(path)) {
            tracing::warn!("--token-file: every account of this machine can read {path}; chmod 600 {path}");
        }
        let served = oncebox_console::serve(self.settings, self.members, shutdown).await;
        served.map_err(|error| anyhow::anyhow!("listen on {listen}: {error}"))
    }

    /// Runs a relay with a console beside it, which ends with it. A relay without its console is
    /// better than no relay.
    pub(super) async fn with_relay<T>(console: Option<Self>, relay: impl Future<Output = T>) -> T {
        let serving = async {
            if let Some(console) = console
                && let Err(error) = console.serve(pending()).await
            {
                tracing::error!("the console is not served: {error}");
            }
            pending().await
        };
        tokio::select! {
            done = relay => done,
            never = serving => never,
        }
    }
}

/// A database that no file names has the name that PostgreSQL knows.
fn lone(outbox: OutboxConfig, config: Option<Config>) -> Member {
    Member { name: name_of(&outbox), outbox, config }
}

/// The name of a database that no file names.
pub(super) fn name_of(outbox: &OutboxConfig) -> String {
    let target = outbox.postgres_target();
    target.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("outbox").to_owned()
}

fn settings(arguments: Arguments, listen: SocketAddr) -> Result<Settings, ConfigError> {
    let Arguments { trusted_header, trusted_proxy: addresses, operator: operators, .. } = arguments;
    let proxy =
        trusted_header.map(|header| Proxy { header: header.to_ascii_lowercase(), addresses, operators });
    let settings = Settings {
        listen,
        hosts: arguments.host,
        allows_actions: arguments.allow_actions,
        shows_payloads: arguments.show_payloads,
        by: arguments.by.unwrap_or_else(|| "console".to_owned()),
        tokens: arguments.token_file.map_or(Ok(Vec::new()), |path| tokens(&path))?,
        proxy,
    };
    settings.check().map_err(ConfigError)?;
    Ok(settings)
}

fn tokens(path: &str) -> Result<Vec<Token>, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| ConfigError(vec![format!("--token-file: read {path}: {error}")]))?;
    let named = |mistake| format!("{path}: {mistake}");
    Token::parse(&text).map_err(|mistakes| ConfigError(mistakes.into_iter().map(named).collect()))
}
