//! `oncebox console`: pages and a JSON API over one database, or over all that a file names; and
//! the console that a relay serves beside its work.

use std::{
    fs::metadata,
    future::pending,
    net::{IpAddr, SocketAddr},
    os::unix::fs::PermissionsExt as _,
};

use clap::{Arg, ArgAction, ArgMatches};
use oncebox_connect::config::{Config, ConfigError, NamedConfig, OutboxConfig};
use oncebox_console::{Member, Proxy, Settings, Token};

use super::{action, relay};

const LISTEN: ([u8; 4], u16) = ([127, 0, 0, 1], 8321);

/// The console of some databases.
pub(crate) struct Console {
    settings: Settings,
    members: Vec<Member>,
    token_file: Option<String>,
}

pub(super) fn command(connection: Vec<Arg>) -> clap::Command {
    let listen =
        "Where the console listens; beyond this machine only with a sign-in [default: 127.0.0.1:8321]";
    clap::Command::new("console")
        .about("Serve pages and a JSON API: look, understand and act, over all databases")
        .arg(address("listen", listen))
        .args(arguments())
        .args(connection)
}

/// The arguments of a console that a relay serves beside its work.
pub(super) fn beside_relay() -> impl Iterator<Item = Arg> {
    let console = "Serve the console there as well, over the databases that are there at the start";
    let others = arguments().into_iter().map(|arg| arg.requires("console"));
    std::iter::once(address("console", console)).chain(others)
}

fn address(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name("IP:PORT").value_parser(clap::value_parser!(SocketAddr)).help(help)
}

fn arguments() -> [Arg; 8] {
    let text = |name, value, help| Arg::new(name).long(name).value_name(value).help(help);
    let switch = |name, help| Arg::new(name).long(name).action(ArgAction::SetTrue).help(help);
    let several = |arg: Arg| arg.action(ArgAction::Append);
    let host =
        "A name under which browsers reach it, beside localhost and addresses; may be given several times";
    let actions = "Let operators retry, discard, pause and so on; without it the console only looks";
    let by = "Who acts, for the audit table, where nobody signs in [default: console]";
    let tokens = "A file with a line NAME:ROLE:TOKEN for each person; roles are reader and operator";
    let header =
        text("trusted-header", "NAME", "A header in which a proxy names who asks, such as X-Forwarded-User");
    let proxy = text("trusted-proxy", "IP", "The proxy's address; may be given several times");
    let operator =
        text("operator", "NAME", "Who of those that the proxy names may act; may be given several times");
    [
        several(text("host", "NAME", host)),
        switch("allow-actions", actions),
        switch("show-payloads", "Show payloads, which may hold what others must not see"),
        text("by", "NAME", by).value_parser(action::bounded(255)),
        text("token-file", "FILE", tokens),
        header.requires("trusted-proxy"),
        several(proxy.value_parser(clap::value_parser!(IpAddr)).requires("trusted-header")),
        several(operator.requires("trusted-header")),
    ]
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
        let listen = flags.get_one::<SocketAddr>("listen").copied().unwrap_or_else(|| LISTEN.into());
        let members = vec![lone(outbox, config)];
        Ok(Self { settings: settings(flags, listen)?, members, token_file: token_file(flags) })
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
        let listen = flags.get_one::<SocketAddr>("console").copied();
        let console = |listen| {
            Ok(Self { settings: settings(flags, listen)?, members: members(), token_file: token_file(flags) })
        };
        listen.map(console).transpose()
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

    pub(super) async fn run(self) -> anyhow::Result<()> {
        let shutdown = relay::shutdown_signal("the console")?;
        self.serve(shutdown).await
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

fn token_file(flags: &ArgMatches) -> Option<String> {
    flags.get_one::<String>("token-file").cloned()
}

fn settings(flags: &ArgMatches, listen: SocketAddr) -> Result<Settings, ConfigError> {
    let texts = |name| flags.get_many::<String>(name).into_iter().flatten().cloned().collect();
    let proxy = flags.get_one::<String>("trusted-header").map(|header| Proxy {
        header: header.to_ascii_lowercase(),
        addresses: flags.get_many::<IpAddr>("trusted-proxy").into_iter().flatten().copied().collect(),
        operators: texts("operator"),
    });
    let settings = Settings {
        listen,
        hosts: texts("host"),
        allows_actions: flags.get_flag("allow-actions"),
        shows_payloads: flags.get_flag("show-payloads"),
        by: flags.get_one::<String>("by").cloned().unwrap_or_else(|| "console".to_owned()),
        tokens: token_file(flags).map_or(Ok(Vec::new()), |path| tokens(&path))?,
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
