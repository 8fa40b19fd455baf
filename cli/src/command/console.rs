//! `oncebox console`: pages and a JSON API over one database, or over all that a file names.

use std::net::{IpAddr, SocketAddr};

use clap::{Arg, ArgAction, ArgMatches};
use oncebox_connect::config::{Config, ConfigError, OutboxConfig};
use oncebox_console::{Member, Proxy, Settings, Token};

use super::{action, relay};

/// The console of some databases.
pub(crate) struct Console {
    settings: Settings,
    members: Vec<Member>,
}

pub(super) fn command(connection: Vec<Arg>) -> clap::Command {
    clap::Command::new("console")
        .about("Serve pages and a JSON API: look, understand and act, over all databases")
        .args(arguments())
        .args(connection)
}

fn arguments() -> [Arg; 9] {
    let text = |name, value, help| Arg::new(name).long(name).value_name(value).help(help);
    let switch = |name, help| Arg::new(name).long(name).action(ArgAction::SetTrue).help(help);
    let several = |arg: Arg| arg.action(ArgAction::Append);
    let listen =
        text("listen", "IP:PORT", "Where the console listens; beyond this machine only with a sign-in");
    let host =
        "A name under which browsers reach it, beside localhost and addresses; may be given several times";
    let tokens = "A file with a line NAME:ROLE:TOKEN for each person; roles are reader and operator";
    let header =
        text("trusted-header", "NAME", "A header in which a proxy names who asks, such as X-Forwarded-User");
    let proxy = text("trusted-proxy", "IP", "The proxy's address; may be given several times");
    let operator =
        text("operator", "NAME", "Who of those that the proxy names may act; may be given several times");
    [
        listen.value_parser(clap::value_parser!(SocketAddr)).default_value("127.0.0.1:8321"),
        several(text("host", "NAME", host)),
        switch(
            "allow-actions",
            "Let operators retry, discard, pause and so on; without it the console only looks",
        ),
        switch("show-payloads", "Show payloads, which may hold what others must not see"),
        text("by", "NAME", "Who acts, for the audit table, where nobody signs in [default: console]")
            .value_parser(action::bounded(255)),
        text("token-file", "FILE", tokens),
        header.requires("trusted-proxy"),
        several(proxy.value_parser(clap::value_parser!(IpAddr)).requires("trusted-header")),
        several(operator.requires("trusted-header")),
    ]
}

impl Console {
    /// # Errors
    /// The settings are not safe, or the file of tokens has mistakes.
    pub(super) fn new(
        flags: &ArgMatches,
        outbox: OutboxConfig,
        config: Option<Box<Config>>,
    ) -> Result<Self, ConfigError> {
        let texts = |name| flags.get_many::<String>(name).into_iter().flatten().cloned().collect();
        let proxy = flags.get_one::<String>("trusted-header").map(|header| Proxy {
            header: header.to_ascii_lowercase(),
            addresses: flags.get_many::<IpAddr>("trusted-proxy").into_iter().flatten().copied().collect(),
            operators: texts("operator"),
        });
        let settings = Settings {
            listen: flags
                .get_one::<SocketAddr>("listen")
                .copied()
                .unwrap_or_else(|| ([127, 0, 0, 1], 8321).into()),
            hosts: texts("host"),
            allows_actions: flags.get_flag("allow-actions"),
            shows_payloads: flags.get_flag("show-payloads"),
            by: flags.get_one::<String>("by").cloned().unwrap_or_else(|| "console".to_owned()),
            tokens: flags.get_one::<String>("token-file").map_or(Ok(Vec::new()), |path| tokens(path))?,
            proxy,
        };
        settings.check().map_err(ConfigError)?;
        let target = outbox.postgres_target();
        let name = target.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("outbox").to_owned();
        let config = config.map(|config| *config);
        Ok(Self { settings, members: vec![Member { name, outbox, config }] })
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
        let listen = self.settings.listen;
        let served = oncebox_console::serve(self.settings, self.members, shutdown).await;
        served.map_err(|error| anyhow::anyhow!("listen on {listen}: {error}"))
    }
}

fn tokens(path: &str) -> Result<Vec<Token>, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| ConfigError(vec![format!("--token-file: read {path}: {error}")]))?;
    let named = |mistake| format!("{path}: {mistake}");
    Token::parse(&text).map_err(|mistakes| ConfigError(mistakes.into_iter().map(named).collect()))
}
