//! The command line of `oncebox`.

mod act;
mod action;
mod adopt;
mod canary;
mod console;
mod contract;
mod databases;
mod doctor;
mod document;
mod edit;
mod enqueue;
mod events;
mod expect;
mod given;
mod help;
mod dev;
mod list;
mod logging;
mod migrate;
mod options;
mod output;
mod pause;
mod proof;
mod prune;
mod relay;
mod saga;
mod scope;
mod show;
mod status;
mod trace;
mod undo;
mod verify;
mod why;
mod word;

use std::{io::Write as _, pin::Pin};

use clap::{Arg, ArgMatches, Args, FromArgMatches, Subcommand};
use oncebox_connect::{
    config::{Config, ConfigError, NamedConfig, OPTIONS, OutboxConfig, Sources, Values},
    error::RelayError,
};
use oncebox_operator::{Action as Catalogue, Kind, Operator, Stamp, Verb};

use given::Given;
pub(crate) use logging::start_logging;
use options::{FOR_BOTH, FOR_DATABASE, FOR_DEV, FOR_PRUNE, FOR_STATUS, is_meant, needs};

/// The command with its arguments, checked.
pub(crate) struct Command {
    values: Values,
    on: On,
    /// Values of the configuration file that the environment hides.
    hidden: Vec<String>,
    action: Action,
}

/// The servers of a command.
#[derive(Clone)]
pub(crate) struct On {
    outbox: OutboxConfig,
    /// The whole configuration, if the command asks NATS as well.
    config: Option<Box<Config>>,
}

impl On {
    fn config(&self) -> &Config {
        self.config.as_deref().expect("options.rs says that the command needs it")
    }

    async fn operator(&self) -> Result<Operator, RelayError> {
        Operator::connect(&self.outbox, Stamp::default()).await
    }

    /// For a command that changes something.
    async fn acting(&self, who: &action::Who) -> Result<Operator, RelayError> {
        Operator::connect(&self.outbox, who.stamp()).await
    }
}

/// A command on one database.
trait Run {
    /// Returns the exit code of one that ends well.
    async fn run(self, on: &On) -> anyhow::Result<u8>;
}

type Running = Pin<Box<dyn Future<Output = anyhow::Result<u8>>>>;

enum Action {
    /// Holds the console beside it as well, if there is one.
    Relay(Option<console::Console>),
    /// Holds all that was typed too, to read the file again.
    Relays(Vec<NamedConfig>, Box<Sources>, Option<console::Console>),
    Dev(Box<dev::Dev>),
    Expect(Box<expect::Expect>),
    /// Holds where to look.
    Trace(trace::Trace, Vec<trace::Place>),
    Why(why::Why, Vec<trace::Place>),
    Databases(databases::Databases),
    Console(console::Console),
    Status(status::Status),
    Other(Box<dyn FnOnce(On) -> Running>),
}

impl Action {
    fn other(command: impl Run + 'static) -> Self {
        Self::Other(Box::new(|on| Box::pin(async move { command.run(&on).await })))
    }
}

/// The command with the arguments of a type.
fn with<T: Args>(name: &'static str) -> clap::Command {
    T::augment_args(clap::Command::new(name))
}

/// The commands of a type, below one.
fn over<T: Subcommand>(name: &'static str, options: impl Fn() -> Vec<Arg>) -> clap::Command {
    let group = clap::Command::new(name).subcommand_required(true).arg_required_else_help(true);
    T::augment_subcommands(group).mut_subcommands(|inner| inner.args(options()))
}

/// The arguments that were given.
fn given<T: FromArgMatches>(flags: &ArgMatches) -> T {
    T::from_arg_matches(flags).expect("the parser has checked them")
}

/// Why nothing is run: help was asked for, or something is wrong.
pub(crate) enum Refusal {
    Clap(clap::Error),
    Config(ConfigError),
    /// A document was asked for: here it is, with the exit code.
    Document(Vec<u8>, u8),
}

impl Refusal {
    #[expect(clippy::print_stderr, reason = "logging is not set up yet")]
    pub(crate) fn print(&self) {
        match self {
            Self::Clap(error) => drop(error.print()),
            // An error here means that the reader, such as `head`, has closed the pipe.
            Self::Document(text, _) => drop(std::io::stdout().write_all(text)),
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
            Self::Document(_, code) => *code,
            Self::Clap(_) | Self::Config(_) => super::BAD_CONFIGURATION,
        }
    }
}

fn parser() -> clap::Command {
    let options = |names: &'static [&'static str]| {
        let meant = move |name: &str| names.is_empty() || is_meant(names, name);
        OPTIONS.iter().filter(move |option| !option.is_secret && meant(option.name)).map(|option| {
            let default = option.default.map(|text| format!(" [default: {text}]")).unwrap_or_default();
            let help = format!("{}{default} [env: {}]", option.help, option.environment);
            Arg::new(option.name).long(option.name).value_name("VALUE").help(help)
        })
    };
    let connection = || options(FOR_DATABASE).collect::<Vec<Arg>>();
    let both = || options(FOR_BOTH).collect::<Vec<Arg>>();
    let of_kind = |kind| of_kind(kind, &connection, &both);
    let program = clap::Command::new("oncebox")
        .max_term_width(100)
        .about("Transactional outbox and inbox for PostgreSQL and NATS JetStream")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(with::<dev::Places>("dev").args(options(FOR_DEV)))
        .subcommand(
            with::<console::Beside>("relay")
                .mut_args(|arg| if arg.get_id() == "console" { arg } else { arg.requires("console") })
                .about("Carry committed messages to JetStream")
                .args(options(&[]))
                .after_help(help::secrets()),
        )
        .subcommand(migrate::Migrate::augment_args(clap::Command::new("migrate").args(connection())))
        .subcommand(with::<status::Status>("status").args(options(FOR_STATUS)))
        .subcommand(with::<why::Why>("why").args(options(FOR_STATUS)))
        .subcommand(with::<trace::Trace>("trace").args(connection()))
        .subcommand(with::<proof::Prove>("proof").args(options(FOR_STATUS)))
        .subcommand(with::<doctor::Doctor>("doctor").args(options(&[])).after_help(help::secrets()))
        .subcommand(with::<adopt::Adopt>("adopt").args(connection()))
        .subcommand(with::<undo::Undo>("undo").args(connection()))
        .subcommand(over::<canary::Canary>("canary", connection))
        .subcommand(with::<console::Alone>("console").args(options(&[])).after_help(help::secrets()))
        .subcommand(
            group("outbox", "Look at messages on their way to JetStream; retry, replay or give them up")
                .subcommand(with::<enqueue::Enqueue>("enqueue").args(connection()))
                .subcommands([Kind::Dead, Kind::Parked, Kind::Delayed].map(of_kind))
                .subcommand(replay(&connection))
                .subcommands([Verb::Pause, Verb::Throttle].map(|verb| pause::command(verb).args(both())))
                .subcommand(pause::command(Verb::Resume).args(connection()))
                .subcommand(with::<pause::List>("pauses").args(connection()))
                .subcommand(act::command(Verb::Resend).args(connection()))
                .subcommand(with::<verify::Verify>("verify").args(both()).after_help(help::secrets()))
                .subcommand(with::<prune::OfOutbox>("prune").args(options(FOR_PRUNE))),
        )
        .subcommand(
            group("inbox", "Look at messages that consumers fail or gave up; delete what is old")
                .subcommands(
                    [Kind::Failing, Kind::Letters].map(of_kind).map(|of| of.after_help(help::secrets())),
                )
                .subcommand(over::<scope::Scope>("scope", connection))
                .subcommand(with::<prune::OfInboxes>("prune").args(connection())),
        )
        .subcommand(saga::command(connection, both()))
        .subcommand(over::<contract::Contract>("contract", Vec::new))
        .subcommand(over::<events::Events>("events", connection))
        .subcommand(over::<expect::Expect>("expect", connection))
        .subcommands(document::commands());
    help::complete(word::with_yes(program.mut_subcommands(databases::with_databases)))
}

/// `list`, `show` and the actions of a kind.
fn of_kind(kind: Kind, connection: &impl Fn() -> Vec<Arg>, both: &impl Fn() -> Vec<Arg>) -> clap::Command {
    let about = match kind {
        Kind::Dead => "Look at messages that were given up; retry, edit or discard them",
        Kind::Parked => {
            "Look at messages that are set aside to be tried again; try them now, or discard them"
        }
        Kind::Delayed => "Look at messages that wait for their time; cancel them",
        Kind::Failing => "Look at messages whose handlers fail; run them now, or give them up",
        _ => "Look at messages that inboxes gave up; retry, edit or discard them",
    };
    let name = kind.command().rsplit(' ').next().unwrap_or_default();
    let show = match kind {
        Kind::Dead | Kind::Parked => Some(with::<show::Message>("show")),
        Kind::Letters => Some(with::<show::Letter>("show")),
        _ => None,
    };
    let to_nats = |verb: Verb| verb.needs_nats() || verb == Verb::EditLetter;
    let actions = Catalogue::on(kind)
        .map(|verb| act::command(verb).args(if to_nats(verb) { both() } else { connection() }));
    group(name, about)
        .subcommand(list::command(kind).args(connection()))
        .subcommands(show.map(|show| show.args(connection())))
        .subcommands(actions)
}

fn replay(connection: &impl Fn() -> Vec<Arg>) -> clap::Command {
    let cancel = act::command(Verb::CancelReplays);
    act::command(Verb::Replay)
        .args(connection())
        .args_conflicts_with_subcommands(true)
        .subcommand_negates_reqs(true)
        .subcommands([list::command(Kind::Replays), cancel].map(|command| command.args(connection())))
}

fn group(name: &'static str, about: &'static str) -> clap::Command {
    clap::Command::new(name).about(about).subcommand_required(true).arg_required_else_help(true)
}

impl Command {
    #[expect(clippy::disallowed_methods, reason = "the one place that hands the environment to config.rs")]
    pub(crate) fn from_process() -> Result<Self, Refusal> {
        let matches = parser().try_get_matches().map_err(Refusal::Clap)?;
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let (mut path, mut flags, mut above) = (Vec::new(), &matches, &matches);
        while let Some((name, inner)) = flags.subcommand() {
            path.push(name);
            (above, flags) = (flags, inner);
        }
        let document = document::write(path[0], flags, parser()).map(|text| (text, 0));
        let document = document.or_else(|| saga::write(&path, flags));
        let contract = || (path[0] == "contract").then(|| given::<contract::Contract>(above).write());
        if let Some((text, code)) = document.or_else(contract) {
            return Err(Refusal::Document(text, code));
        }
        word::ask(&path, flags).map_err(Refusal::Clap)?;
        // Other commands have a --stream of their own: the one that they are about.
        let declares = ["relay", "doctor", "dev"].contains(&path[0]);
        let meant = OPTIONS.iter().filter(|option| declares || option.name != "stream");
        let typed = meant.filter_map(|option| {
            let text = flags.try_get_one::<String>(option.name).ok()??;
            Some((option.name, text.clone()))
        });
        let sources = Sources::read(typed.collect(), names, |name| std::env::var(name).ok());
        if let Some(written) =
            (path == ["migrate"]).then(|| given::<migrate::Migrate>(flags).write(sources.values())).flatten()
        {
            return Err(written.map_or_else(Refusal::Config, |text| Refusal::Document(text, 0)));
        }
        Self::new(&Given { path: &path, flags, above }, sources).map_err(Refusal::Config)
    }

    fn new(given: &Given<'_>, sources: Sources) -> Result<Self, ConfigError> {
        let flags = given.flags;
        if given.path == ["dev"] {
            let sources = sources.only(|option| is_meant(FOR_DEV, option));
            let (dev, outbox) = dev::Dev::new(flags, &sources)?;
            let (values, on) = (sources.values().clone(), On { outbox, config: None });
            return Ok(Self { values, on, action: Action::Dev(Box::new(dev)), hidden: Vec::new() });
        }
        if sources.has_databases() {
            return databases::command(given, &sources);
        }
        let command = Self::one(given, sources)?;
        let own = console::name_of(&command.on.outbox);
        let names = flags.try_get_many::<String>("database").ok().flatten().into_iter().flatten();
        if let Some(other) = names.into_iter().find(|name| **name != own) {
            let problem = format!(
                "--database chooses of the databases that a configuration file names, but none is named: only {own:?} is \
                 configured, and not {other:?}"
            );
            return Err(ConfigError::distinct(vec![problem]));
        }
        Ok(command)
    }

    /// The command on one database.
    fn one(given: &Given<'_>, sources: Sources) -> Result<Self, ConfigError> {
        let Given { path, flags, .. } = *given;
        let needs = needs(path, flags, &sources);
        let hidden = sources.hidden().to_vec();
        let sources = sources.only(|option| needs.is_empty() || is_meant(needs, option));
        let config = match is_meant(needs, "nats-url") || needs.is_empty() {
            true => Some(Box::new(Config::from_sources(&sources)?)),
            false => None,
        };
        let outbox = match &config {
            Some(config) => config.outbox().clone(),
            None => OutboxConfig::from_sources(&sources)?,
        };
        let on = On { outbox, config };
        let action = given.action(&on, sources.values())?;
        Ok(Self { values: sources.values().clone(), on, action, hidden })
    }

    /// Runs the command; returns the exit code of one that ends well.
    pub(crate) async fn run(self) -> anyhow::Result<u8> {
        self.hidden.iter().for_each(|hidden| tracing::warn!("{hidden}"));
        match self.action {
            Action::Databases(databases) => databases.run().await,
            _ => self.run_one().await,
        }
    }

    async fn run_one(self) -> anyhow::Result<u8> {
        let on = self.on;
        match self.action {
            Action::Other(run) => run(on).await,
            Action::Relay(console) => relay::one(on.config().clone(), console).await,
            Action::Relays(databases, sources, console) => relay::many(databases, *sources, console).await,
            Action::Dev(dev) => dev.run().await,
            Action::Expect(expect) => expect.run(&on).await,
            Action::Status(status) => status.run(&on).await,
            Action::Trace(trace, places) => trace.run(places).await,
            Action::Why(why, places) => why.run(places).await,
            Action::Console(console) => console.run().await,
            Action::Databases(_) => unreachable!("each of them is a command of its own"),
        }
    }
}
