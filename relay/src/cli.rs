//! The command line of `oncebox`.

mod dead;
mod operator;
mod output;
mod prune;
mod replay;

use std::io::IsTerminal as _;

use clap::{Arg, ArgMatches};
use oncebox_relay::{Config, ConfigError, OPTIONS, Relay, Values, connect_postgres, from_environment};
use oncebox_schema::{Lanes, SchemaName, migrate};
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use tracing_subscriber::EnvFilter;

/// What was asked for, checked.
pub(crate) struct Command {
    values: Values,
    config: Config,
    action: Action,
}

enum Action {
    Relay,
    Migrate(Lanes),
    Dead(dead::Dead),
    Replay(replay::Replay),
    Prune(prune::Prune),
}

/// Why nothing is run: help was asked for, or something is wrong.
pub(crate) enum Refusal {
    Clap(clap::Error),
    Config(ConfigError),
}

impl Refusal {
    #[expect(clippy::print_stderr, reason = "logging is not set up yet")]
    pub(crate) fn print(&self) {
        match self {
            Self::Clap(error) => drop(error.print()),
            Self::Config(error) => {
                eprintln!("the configuration is wrong:");
                for mistake in &error.0 {
                    eprintln!("  {mistake}");
                }
            }
        }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Clap(error) if !error.use_stderr() => 0,
            Self::Clap(_) | Self::Config(_) => super::BAD_CONFIGURATION,
        }
    }
}

const CONNECTION: &[&str] = &["database-url", "schema", "log"];
const PRUNE: &[&str] = &["database-url", "schema", "log", "retention"];

fn parser() -> clap::Command {
    let options = |names: &'static [&'static str]| {
        OPTIONS.iter().filter(move |option| names.is_empty() || names.contains(&option.name)).map(|option| {
            let default = option.default.map(|text| format!(" [default: {text}]")).unwrap_or_default();
            let help = format!("{}{default} [env: {}]", option.help, option.environment);
            Arg::new(option.name).long(option.name).value_name("VALUE").help(help)
        })
    };
    // What every command needs that only talks to PostgreSQL.
    let connection = || options(CONNECTION).collect::<Vec<Arg>>();
    let lanes = Arg::new("lanes")
        .long("lanes")
        .default_value("16")
        .value_parser(clap::value_parser!(u16).range(1..=256))
        .help("Lanes of a new outbox; fixed when it is installed");
    clap::Command::new("oncebox")
        .about("Transactional outbox and inbox for PostgreSQL and NATS JetStream")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            clap::Command::new("relay").about("Carry committed messages to JetStream").args(options(&[])),
        )
        .subcommand(
            clap::Command::new("migrate")
                .about("Install the schema, or bring it up to date")
                .args(connection())
                .arg(lanes),
        )
        .subcommand(dead::command(connection))
        .subcommand(replay::command(connection()))
        .subcommand(prune::command(options(PRUNE).collect()))
}

impl Command {
    #[expect(clippy::disallowed_methods, reason = "the one place that hands the environment to config.rs")]
    pub(crate) fn from_process() -> Result<Self, Refusal> {
        let matches = parser().try_get_matches().map_err(Refusal::Clap)?;
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let environment =
            from_environment(names, |name| std::env::var(name).ok()).map_err(Refusal::Config)?;
        Self::new(&matches, environment).map_err(Refusal::Config)
    }

    fn new(matches: &ArgMatches, environment: Values) -> Result<Self, ConfigError> {
        let mut values = environment;
        let (name, flags) = matches.subcommand().expect("clap requires a subcommand");
        let innermost = flags.subcommand().map_or(flags, |(_, inner)| inner);
        for option in OPTIONS {
            if let Ok(Some(text)) = innermost.try_get_one::<String>(option.name) {
                values.insert(option.name, text.clone());
            }
        }
        let action = match name {
            "migrate" => {
                let lanes = flags.get_one::<u16>("lanes").copied();
                Action::Migrate(lanes.and_then(Lanes::new).unwrap_or_default())
            }
            "dead" => Action::Dead(dead::Dead::new(flags)),
            "replay" => Action::Replay(replay::Replay::new(flags)),
            "prune" => Action::Prune(prune::Prune::new(flags)),
            _ => Action::Relay,
        };
        if !matches!(action, Action::Relay) {
            // The others do not talk to NATS.
            values.insert("nats-url", "nats://127.0.0.1".to_owned());
        }
        let config = Config::from_values(&values)?;
        if matches!(action, Action::Prune(_)) {
            prune::Prune::check(&config)?;
        }
        Ok(Self { values, config, action })
    }

    pub(crate) async fn run(self) -> anyhow::Result<()> {
        match self.action {
            Action::Dead(dead) => dead.run(&self.config).await,
            Action::Replay(replay) => replay.run(&self.config).await,
            Action::Prune(prune) => prune.run(&self.config).await,
            Action::Relay => Ok(Relay::run(self.config, shutdown_signal()?).await?),
            Action::Migrate(lanes) => {
                let mut tasks = JoinSet::new();
                let mut client = connect_postgres(&self.config, &mut tasks).await?;
                let schema: SchemaName =
                    self.values.get("schema").map(|name| name.parse()).transpose()?.unwrap_or_default();
                let migrated = migrate(&mut client, &schema, lanes).await?;
                tracing::info!(schema = %schema, from = migrated.from, to = migrated.to, "migrated");
                Ok(())
            }
        }
    }
}

/// Logs go to standard error; standard output is for data.
pub(crate) fn start_logging(command: &Command) {
    let filter = Config::log_filter(&command.values);
    let filter = EnvFilter::builder().parse_lossy(filter);
    // Colours are for people; a log file full of escape codes is for nobody.
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr).init();
}

/// Resolves at the first SIGTERM or SIGINT. A second one ends the process at once.
fn shutdown_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        let next = async move || {
            tokio::select! {
                _ = terminate.recv() => (),
                _ = interrupt.recv() => (),
            }
        };
        let mut next = next;
        next().await;
        tracing::info!("draining; a second signal ends the relay at once");
        let watcher = async move {
            next().await;
            #[expect(clippy::exit, reason = "the operator asked twice; unsettled messages are sent again")]
            std::process::exit(130);
        };
        drop(tokio::runtime::Handle::current().spawn(watcher));
    })
}
