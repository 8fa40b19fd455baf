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

use std::io::Write as _;

use clap::{Arg, ArgMatches};
use oncebox_connect::config::{Config, ConfigError, NamedConfig, OPTIONS, OutboxConfig, Sources, Values};
use oncebox_operator::{Action as Catalogue, Kind, Verb};

pub(crate) use logging::start_logging;
use options::{FOR_BOTH, FOR_DATABASE, FOR_DEV, FOR_PRUNE, FOR_STATUS, is_meant, needs};

/// The command with its arguments, checked.
pub(crate) struct Command {
    values: Values,
    outbox: OutboxConfig,
    /// Values of the configuration file that the environment hides.
    hidden: Vec<String>,
    action: Action,
}

enum Action {
    /// Holds the console beside it as well, if there is one.
    Relay(Box<Config>, Option<console::Console>),
    /// Holds all that was typed too, to read the file again.
    Relays(Vec<NamedConfig>, Box<Sources>, Option<console::Console>),
    Migrate(migrate::Migrate),
    List(Box<list::List>),
    Show(show::Show),
    /// Holds the whole configuration if the command sends messages.
    Act(Box<act::Act>, Option<Box<Config>>),
    /// Holds the whole configuration if a stream is named.
    Pauses(pause::Pauses, Option<Box<Config>>),
    Events(events::Events),
    Expect(expect::Expect),
    Enqueue(enqueue::Enqueue),
    Dev(Box<dev::Dev>),
    Sagas(saga::Sagas),
    LeadSagas(saga::Lead, Box<Config>),
    ApplySagas(saga::Lead),
    StartSaga(saga::Start),
    Verify(verify::Verify, Box<Config>),
    Prove(proof::Prove, Option<Box<Config>>),
    Adopt(adopt::Adopt),
    Undo(undo::Undo),
    Canary(canary::Canary),
    PruneOutbox(prune::OfOutbox),
    PruneInboxes(prune::OfInboxes),
    Scope(scope::Scope),
    /// Holds where to look.
    Trace(trace::Trace, Vec<trace::Place>),
    /// The same, with the whole configuration where NATS is configured.
    Why(why::Why, Vec<trace::Place>),
    Databases(databases::Databases),
    Console(console::Console),
    /// Holds the whole configuration if NATS is configured.
    Status(status::Status, Option<Box<Config>>),
    Doctor(doctor::Doctor, Box<Config>),
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
        .subcommand(dev::command(options(FOR_DEV).collect()))
        .subcommand(
            clap::Command::new("relay")
                .about("Carry committed messages to JetStream")
                .args(console::beside_relay())
                .args(options(&[]))
                .after_help(help::secrets()),
        )
        .subcommand(migrate::command(connection()))
        .subcommand(status::command(options(FOR_STATUS).collect()))
        .subcommand(why::command(options(FOR_STATUS).collect()))
        .subcommand(trace::command(connection()))
        .subcommand(proof::command(options(FOR_STATUS).collect()))
        .subcommand(doctor::command(options(&[]).collect()).after_help(help::secrets()))
        .subcommand(adopt::command(connection()))
        .subcommand(undo::command(connection()))
        .subcommand(canary::command(connection))
        .subcommand(console::command(options(&[]).collect()).after_help(help::secrets()))
        .subcommand(
            group("outbox", "Look at messages on their way to JetStream; retry, replay or give them up")
                .subcommand(enqueue::command(connection()))
                .subcommands([Kind::Dead, Kind::Parked, Kind::Delayed].map(of_kind))
                .subcommand(replay(&connection))
                .subcommands(pause::commands(connection, || options(FOR_BOTH).collect()))
                .subcommand(act::command(Verb::Resend).args(connection()))
                .subcommand(verify::command(options(FOR_BOTH).collect()).after_help(help::secrets()))
                .subcommand(prune::of_outbox(options(FOR_PRUNE).collect())),
        )
        .subcommand(
            group("inbox", "Look at messages that consumers fail or gave up; delete what is old")
                .subcommands(
                    [Kind::Failing, Kind::Letters].map(of_kind).map(|of| of.after_help(help::secrets())),
                )
                .subcommand(scope::command(connection))
                .subcommand(prune::of_inboxes(connection())),
        )
        .subcommand(saga::command(connection, options(FOR_BOTH).collect()))
        .subcommand(contract::command())
        .subcommand(events::command(connection))
        .subcommand(expect::command(connection))
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
    let shows = [Kind::Dead, Kind::Parked, Kind::Letters].contains(&kind);
    let to_nats = |verb: Verb| verb.needs_nats() || verb == Verb::EditLetter;
    let actions = Catalogue::on(kind)
        .map(|verb| act::command(verb).args(if to_nats(verb) { both() } else { connection() }));
    group(name, about)
        .subcommand(list::command(kind).args(connection()))
        .subcommands(shows.then(|| show::command(kind).args(connection())))
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
        let (mut path, mut flags) = (Vec::new(), &matches);
        while let Some((name, inner)) = flags.subcommand() {
            path.push(name);
            flags = inner;
        }
        let document = document::write(path[0], flags, parser()).map(|text| (text, 0));
        let document = document.or_else(|| saga::write(&path, flags));
        if let Some((text, code)) = document.or_else(|| contract::write(&path, flags)) {
            return Err(Refusal::Document(text, code));
        }
        word::ask(&path, flags).map_err(Refusal::Clap)?;
        // Other commands have a --stream of their own: the one that they are about.
        let declares = ["relay", "doctor", "dev"].contains(&path[0]);
        let meant = OPTIONS.iter().filter(|option| declares || option.name != "stream");
        let given = meant.filter_map(|option| {
            let text = flags.try_get_one::<String>(option.name).ok()??;
            Some((option.name, text.clone()))
        });
        let sources = Sources::read(given.collect(), names, |name| std::env::var(name).ok());
        if let Some(written) =
            (path == ["migrate"]).then(|| migrate::write(flags, sources.values())).flatten()
        {
            return Err(written.map_or_else(Refusal::Config, |text| Refusal::Document(text, 0)));
        }
        Self::new(&path, flags, sources).map_err(Refusal::Config)
    }

    fn new(path: &[&str], flags: &ArgMatches, sources: Sources) -> Result<Self, ConfigError> {
        if path == ["dev"] {
            let sources = sources.only(|option| is_meant(FOR_DEV, option));
            let (dev, outbox) = dev::Dev::new(flags, &sources)?;
            let values = sources.values().clone();
            return Ok(Self { values, outbox, action: Action::Dev(Box::new(dev)), hidden: Vec::new() });
        }
        if sources.has_databases() {
            return databases::command(path, flags, &sources);
        }
        let command = Self::one(path, flags, sources)?;
        // The console's lines name it so.
        let own = console::name_of(&command.outbox);
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
    fn one(path: &[&str], flags: &ArgMatches, sources: Sources) -> Result<Self, ConfigError> {
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
        let action = match (path, config) {
            (["relay"], Some(config)) => {
                let console = console::Console::beside_one(flags, &config)?;
                Action::Relay(config, console)
            }
            (["doctor"], Some(config)) => Action::Doctor(doctor::Doctor::new(flags), config),
            (["proof"], config) => Action::Prove(proof::Prove::new(flags)?, config),
            (["status"], config) => Action::Status(status::Status::new(flags), config),
            (["console"], config) => {
                let config = config.map(|config| *config);
                Action::Console(console::Console::new(flags, outbox.clone(), config)?)
            }
            (["trace"], _) => {
                Action::Trace(trace::Trace::new(flags, sources.values())?, vec![databases::lone(&outbox)])
            }
            (["why"], whole) => {
                let place = trace::Place { whole, ..databases::lone(&outbox) };
                Action::Why(why::Why::new(flags, sources.values())?, vec![place])
            }
            (["undo"], _) => Action::Undo(undo::Undo::new(flags)),
            (["canary", name], _) => Action::Canary(canary::Canary::new(name, flags)),
            (["adopt"], _) => Action::Adopt(adopt::Adopt::new(flags)),
            (["migrate"], _) => Action::Migrate(migrate::Migrate::new(flags)),
            ([_, "dead" | "parked", "show"], _) => Action::Show(show::Show::new(flags)),
            (["outbox", name @ ("pause" | "throttle" | "resume" | "pauses")], config) => {
                Action::Pauses(pause::Pauses::new(name, flags)?, config)
            }
            (["outbox", "verify"], Some(config)) => Action::Verify(verify::Verify::new(flags), config),
            (["outbox", "prune"], _) => Action::PruneOutbox(prune::OfOutbox::new(flags, &outbox)?),
            (["inbox", "scope", name], _) => Action::Scope(scope::Scope::new(name, flags)),
            (["inbox", "prune"], _) => Action::PruneInboxes(prune::OfInboxes::new(flags)),
            (["outbox", "enqueue"], _) => {
                Action::Enqueue(enqueue::Enqueue::new(flags).map_err(|mistake| ConfigError(vec![mistake]))?)
            }
            (["events", name], _) => Action::Events(events::Events::new(name, flags)),
            (["expect", name], _) => Action::Expect(expect::Expect::new(name, flags)),
            (["saga", "run"], Some(config)) => Action::LeadSagas(saga::Lead::new(flags)?, config),
            (["saga", "apply"], _) => Action::ApplySagas(saga::Lead::new(flags)?),
            (["saga", "start"], _) => Action::StartSaga(saga::Start::new(flags)),
            (["saga", name @ ("show" | "graph")], _) => Action::Sagas(saga::Sagas::new(name, flags)),
            ([group @ .., "list"], _) if let Some(kind) = Kind::of_command(group) => {
                Action::List(Box::new(list::List::new(kind, flags)?))
            }
            (other, config) => {
                let verb = Catalogue::of_command(other).expect("the other commands are actions");
                Action::Act(Box::new(act::Act::new(verb, flags)?), config)
            }
        };
        Ok(Self { values: sources.values().clone(), outbox, action, hidden })
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
        match self.action {
            Action::List(list) => list.run(&self.outbox).await,
            Action::Show(show) => show.run(&self.outbox).await,
            Action::Act(act, config) => act.run(&self.outbox, config.as_deref()).await,
            Action::Pauses(pauses, config) => pauses.run(&self.outbox, config.as_deref()).await,
            Action::Events(events) => events.run(&self.outbox).await,
            Action::Expect(expect) => expect.run(&self.outbox).await,
            Action::Enqueue(enqueue) => enqueue.run(&self.outbox).await,
            Action::Dev(dev) => dev.run().await,
            Action::Sagas(sagas) => sagas.run(&self.outbox).await,
            Action::LeadSagas(lead, config) => lead.run(&config).await,
            Action::ApplySagas(lead) => lead.apply(&self.outbox).await,
            Action::StartSaga(start) => start.run(&self.outbox).await,
            Action::Status(status, config) => return status.run(&self.outbox, config.as_deref()).await,
            Action::Doctor(doctor, config) => return doctor.run(&config).await,
            Action::Verify(verify, config) => return verify.run(&config).await,
            Action::Prove(proof, config) => return proof.run(&self.outbox, config.as_deref()).await,
            Action::Trace(trace, places) => return trace.run(places).await,
            Action::Why(why, places) => return why.run(places).await,
            Action::Console(console) => console.run().await,
            Action::Databases(_) => unreachable!("each of them is a command of its own"),
            Action::Undo(undo) => undo.run(&self.outbox).await,
            Action::Canary(canary) => canary.run(&self.outbox).await,
            Action::Adopt(adopt) => adopt.run(&self.outbox).await,
            Action::PruneOutbox(prune) => prune.run(&self.outbox).await,
            Action::PruneInboxes(prune) => prune.run(&self.outbox).await,
            Action::Scope(scope) => scope.run(&self.outbox).await,
            Action::Relay(config, console) => relay::one(*config, console).await,
            Action::Relays(databases, sources, console) => relay::many(databases, *sources, console).await,
            Action::Migrate(migrate) => migrate.run(&self.outbox).await,
        }
        .map(|()| 0)
    }
}
