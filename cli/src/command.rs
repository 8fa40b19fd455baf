//! The command line of `oncebox`.

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
mod dead_letters;
mod delayed;
mod dev;
mod failing;
mod logging;
mod losses;
mod migrate;
mod options;
mod output;
mod parked;
mod pause;
mod proof;
mod prune;
mod relay;
mod replay;
mod saga;
mod scope;
mod status;
mod trace;
mod undo;
mod verify;
mod why;
mod word;

use std::io::Write as _;

use clap::{Arg, ArgMatches};
use oncebox_connect::config::{Config, ConfigError, NamedConfig, OPTIONS, OutboxConfig, Sources, Values};
use oncebox_operator::ParkedKind;

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
    Parked(parked::Asked),
    Delayed(delayed::Delayed),
    /// Holds the whole configuration if the command sends messages.
    DeadLetters(dead_letters::DeadLetters, Option<Box<Config>>),
    /// The same.
    Failing(failing::Failing, Option<Box<Config>>),
    Replay(replay::Replay),
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
    Resend(losses::Resend),
    Verify(verify::Verify, Box<Config>),
    Prove(proof::Prove, Option<Box<Config>>),
    Adopt(adopt::Adopt),
    Undo(undo::Undo),
    /// Holds the whole configuration if it sends a message.
    Edit(edit::Edits, Option<Box<Config>>),
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
                .subcommands(parked::commands(connection))
                .subcommand(delayed::command(connection))
                .subcommand(replay::command(connection))
                .subcommands(pause::commands(connection, || options(FOR_BOTH).collect()))
                .subcommand(losses::command(connection()))
                .subcommand(verify::command(options(FOR_BOTH).collect()).after_help(help::secrets()))
                .subcommand(prune::of_outbox(options(FOR_PRUNE).collect())),
        )
        .subcommand(
            group("inbox", "Look at messages that consumers fail or gave up; delete what is old")
                .subcommand(
                    failing::command(connection(), || options(FOR_BOTH).collect())
                        .after_help(help::secrets()),
                )
                .subcommand(
                    dead_letters::command(connection, options(FOR_BOTH).collect())
                        .after_help(help::secrets()),
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
            (["inbox" | "outbox", "dead", "edit"], config) => Action::Edit(edit::Edits::new(flags), config),
            (["outbox", "dead", name], _) => set_aside(ParkedKind::Dead, name, flags),
            (["outbox", "parked", name], _) => set_aside(ParkedKind::Parked, name, flags),
            (["outbox", "replay", name], _) => set_aside(ParkedKind::Replay, name, flags),
            (["outbox", "replay"], _) => Action::Replay(replay::Replay::new(flags)),
            (["outbox", "delayed", name], _) => Action::Delayed(delayed::Delayed::new(name, flags)),
            (["outbox", name @ ("pause" | "throttle" | "resume" | "pauses")], config) => {
                Action::Pauses(pause::Pauses::new(name, flags), config)
            }
            (["outbox", "resend"], _) => Action::Resend(losses::Resend::new(flags)),
            (["outbox", "verify"], Some(config)) => Action::Verify(verify::Verify::new(flags), config),
            (["outbox", "prune"], _) => Action::PruneOutbox(prune::OfOutbox::new(flags, &outbox)?),
            (["inbox", "dead", name], config) => {
                Action::DeadLetters(dead_letters::DeadLetters::new(name, flags), config)
            }
            (["inbox", "failing", name], config) => {
                Action::Failing(failing::Failing::new(name, flags), config)
            }
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
            (["saga", name], _) => Action::Sagas(saga::Sagas::new(name, flags)),
            (other, _) => unreachable!("{other:?} is a command, and each has its line here"),
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
            Action::Parked(asked) => asked.run(&self.outbox).await,
            Action::Delayed(delayed) => delayed.run(&self.outbox).await,
            Action::DeadLetters(dead_letters, config) => {
                dead_letters.run(&self.outbox, config.as_deref()).await
            }
            Action::Pauses(pauses, config) => pauses.run(&self.outbox, config.as_deref()).await,
            Action::Events(events) => events.run(&self.outbox).await,
            Action::Expect(expect) => expect.run(&self.outbox).await,
            Action::Enqueue(enqueue) => enqueue.run(&self.outbox).await,
            Action::Dev(dev) => dev.run().await,
            Action::Failing(failing, config) => failing.run(&self.outbox, config.as_deref()).await,
            Action::Resend(resend) => resend.run(&self.outbox).await,
            Action::Replay(replay) => replay.run(&self.outbox).await,
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
            Action::Edit(edit, config) => edit.run(&self.outbox, config.as_deref()).await,
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

fn set_aside(kind: ParkedKind, name: &str, flags: &ArgMatches) -> Action {
    Action::Parked(parked::Asked::new(kind, name, flags))
}
