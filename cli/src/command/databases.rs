//! Commands on the databases that a configuration file names: a command that looks is run on all of
//! them at once, one that changes something where `--database` says.

use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches};
use oncebox_connect::{
    config::{ConfigError, NamedConfig, OutboxConfig, Sources},
    error::{RelayError, error_chain},
};
use oncebox_operator::{together, within};
use serde_json::json;
use tracing::{Instrument as _, error_span};

use super::{
    Action, Command, Given, On,
    console::Console,
    output,
    status::{self, Looked, Status},
    trace::{Place, Trace, others},
    why::Why,
};

/// The time for one look at one database.
pub(super) const LOOK_MAX: Duration = Duration::from_secs(20);
/// The last words of commands that only look, and that have little to read.
const LOOKS: [&str; 9] = ["console", "status", "trace", "why", "doctor", "list", "show", "graph", "pauses"];

/// A command on several databases.
pub(crate) struct Databases {
    commands: Vec<(String, Command)>,
    /// It changes nothing, and asks all at once.
    looks: bool,
    json: bool,
}

/// The end of a command on one database: the text that it printed, and its exit code.
struct Ended {
    database: String,
    text: String,
    result: anyhow::Result<u8>,
}

/// Adds `--database` to each command that takes a configuration file, but `relay`, which serves
/// all.
pub(super) fn with_databases(command: clap::Command) -> clap::Command {
    let takes_file = command.get_arguments().any(|argument| argument.get_id() == "config");
    let command = command.mut_subcommands(with_databases);
    if !takes_file || command.get_name() == "relay" {
        return command;
    }
    let names = Arg::new("database").long("database").value_name("NAME").action(ArgAction::Append);
    command.arg(names.help(
        "A database that the configuration file names; may be given several times. Left out: all of them, if the \
         command changes nothing",
    ))
}

/// The command on the databases that are chosen of those that the file names.
pub(super) fn command(given: &Given<'_>, sources: &Sources) -> Result<Command, ConfigError> {
    let Given { path, flags, .. } = *given;
    let hidden = sources.hidden().to_vec();
    if path == ["relay"] {
        let databases = NamedConfig::all(sources)?;
        let on = On { outbox: databases[0].config.outbox().clone(), config: None };
        let console = Console::beside_many(flags, &databases)?;
        let action = Action::Relays(databases, Box::new(sources.clone()), console);
        return Ok(Command { values: sources.values().clone(), on, action, hidden });
    }
    let looks = looks(path, flags);
    let (mut commands, mut mistakes) = (Vec::new(), sources.mistakes().to_vec());
    match choose(path, flags, sources, looks) {
        Err(unchosen) => mistakes.extend(unchosen),
        Ok(chosen) => {
            for (name, own) in chosen {
                match Command::one(given, own).and_then(|one| with_inbox(one, given, sources)) {
                    Ok(command) => commands.push((name, command)),
                    Err(error) => mistakes.extend(error.0),
                }
            }
        }
    }
    let Some((_, first)) = commands.first().filter(|_| mistakes.is_empty()) else {
        return Err(ConfigError::distinct(mistakes));
    };
    let (values, on) = (first.values.clone(), first.on.clone());
    if draws(flags) {
        return Ok(Command { hidden, ..commands.swap_remove(0).1 });
    }
    let action = match path {
        ["trace"] => {
            let trace: Trace = super::given(flags);
            let places = [places(commands), others(&trace.also, &values)?].concat();
            Action::Trace(trace, places)
        }
        ["why"] => {
            let why: Why = super::given(flags);
            let places = [places(commands), others(&why.also, &values)?].concat();
            Action::Why(why, places)
        }
        ["console"] => console(commands),
        _ => Action::Databases(Databases { commands, looks, json: has(flags, "json") }),
    };
    Ok(Command { values, on, action, hidden })
}

/// An expectation also looks in the database of its inbox, which must be one of the file.
fn with_inbox(one: Command, given: &Given<'_>, sources: &Sources) -> Result<Command, ConfigError> {
    let Action::Expect(expect) = &one.action else { return Ok(one) };
    let Some(name) = expect.inbox_database().map(str::to_owned) else { return Ok(one) };
    let databases = sources.databases();
    let known: Vec<&str> = databases.iter().map(|(name, _)| name.as_str()).collect();
    let unknown = format!("--in: the file names no database {name:?}, but {}", known.join(", "));
    let found = databases.into_iter().find(|(known, _)| *known == name);
    let (_, own) = found.ok_or_else(|| ConfigError(vec![unknown]))?;
    let inbox = Command::one(given, own)?.on.outbox;
    let Command { action: Action::Expect(expect), values, on, hidden } = one else { return Ok(one) };
    Ok(Command { action: Action::Expect(Box::new(expect.looking_in(inbox))), values, on, hidden })
}

fn has(flags: &ArgMatches, name: &str) -> bool {
    flags.try_get_one::<bool>(name).ok().flatten().copied().unwrap_or(false)
}

/// Whether the command prints a picture, which has no place for the name of a database.
fn draws(flags: &ArgMatches) -> bool {
    has(flags, "svg") || has(flags, "mermaid")
}

fn looks(path: &[&str], flags: &ArgMatches) -> bool {
    let is_look = path.last().is_some_and(|last| LOOKS.contains(last));
    is_look && !waits(flags) || has(flags, "dry-run") || has(flags, "check")
}

/// Whether the command waits for longer than a look may take.
fn waits(flags: &ArgMatches) -> bool {
    flags.try_get_raw("until-quiet").is_ok_and(|given| given.is_some())
}

fn places(commands: Vec<(String, Command)>) -> Vec<Place> {
    let place = |(database, command): (String, Command)| {
        let On { outbox, config } = command.on;
        Place { database, config: outbox, whole: config, is_named: true }
    };
    commands.into_iter().map(place).collect()
}

/// One console for all of them.
fn console(commands: Vec<(String, Command)>) -> Action {
    let all = commands.into_iter().filter_map(|(name, command)| match command.action {
        Action::Console(console) => Some((name, console)),
        _ => None,
    });
    Console::join(all).map(Action::Console).expect("each of the commands is a console")
}

/// The databases that are named, or all if the command may take all.
fn choose(
    path: &[&str],
    flags: &ArgMatches,
    sources: &Sources,
    looks: bool,
) -> Result<Vec<(String, Sources)>, Vec<String>> {
    let all = sources.databases();
    let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    let wanted: Vec<&String> = flags.get_many::<String>("database").into_iter().flatten().collect();
    let known = names.join(", ");
    let unknown = wanted.iter().filter(|name| !names.contains(&name.as_str()));
    let unknown: Vec<String> =
        unknown.map(|name| format!("--database: the file names no database {name:?}, but {known}")).collect();
    if !unknown.is_empty() {
        return Err(unknown);
    }
    let many = if wanted.is_empty() { names.len() } else { wanted.len() };
    let words = path.join(" ");
    if draws(flags) && many > 1 {
        return Err(vec![format!(
            "`oncebox {words}` draws one picture: choose one with --database: {known}"
        )]);
    }
    if path == ["saga", "run"] && many > 1 {
        return Err(vec![format!(
            "`oncebox {words}` leads the sagas of one database: choose one with --database: {known}"
        )]);
    }
    if waits(flags) && many > 1 {
        return Err(vec![format!(
            "`oncebox {words} --until-quiet` waits for one database: choose one with --database: {known}"
        )]);
    }
    if !looks && wanted.is_empty() && many > 1 {
        return Err(vec![format!(
            "`oncebox {words}` changes something, or reads a whole log, so it does not take all databases: choose with \
             --database: {known}"
        )]);
    }
    Ok(all.into_iter().filter(|(name, _)| wanted.is_empty() || wanted.contains(&name)).collect())
}

impl Databases {
    /// Returns the highest of the exit codes.
    pub(super) async fn run(self) -> anyhow::Result<u8> {
        if let [(_, Command { action: Action::Status(status), .. }), ..] = &self.commands[..]
            && let Some((period, once)) = status.watched()
        {
            return self.watch(period, once).await;
        }
        if !self.looks {
            return self.one_by_one().await;
        }
        let json = self.json;
        Ok(report(at_once(self.commands).await, json, "")?.0)
    }

    async fn watch(self, period: Duration, once: Status) -> anyhow::Result<u8> {
        let json = self.json;
        let look = async |clears: bool| {
            let commands = self.commands.iter().map(|(name, command)| {
                let (values, on) = (command.values.clone(), command.on.clone());
                let action = Action::Status(once.clone());
                (name.clone(), Command { values, on, action, hidden: Vec::new() })
            });
            let ended = at_once(commands.collect()).await;
            let (_, is_read) = report(ended, json, if clears && !json { status::CLEAR } else { "" })?;
            Ok(if is_read { Looked::Whole } else { Looked::Unread })
        };
        status::watch(period, look).await
    }

    /// Goes on after one that fails: each is a system of its own.
    async fn one_by_one(self) -> anyhow::Result<u8> {
        let mut worst = 0;
        for (name, command) in self.commands {
            if !self.json {
                output::print(&format!("database {name}\n"))?;
            }
            let span = error_span!("database", name);
            let result = output::naming(&name, Box::pin(command.run_one())).instrument(span).await;
            worst = worst.max(result.unwrap_or_else(|error| {
                tracing::error!(database = name, "{}", error_chain(error.as_ref()));
                crate::exit_code(&error)
            }));
        }
        Ok(worst)
    }
}

/// Runs commands that look, some at a time, each with its deadline; they end in their own order.
async fn at_once(commands: Vec<(String, Command)>) -> Vec<Ended> {
    let looks = commands.into_iter().map(|(database, command)| async move {
        let target = command.on.outbox.postgres_target();
        let span = error_span!("database", name = database);
        let (text, result) =
            output::keep(&database, in_time(target, Box::pin(command.run_one()))).instrument(span).await;
        Ended { database, text, result }
    });
    together(looks).await
}

/// A look has its deadline.
pub(super) async fn in_time<T>(
    target: String,
    look: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    within(LOOK_MAX, target, look).await
}

/// A database that cannot be asked, as a line.
pub(super) fn unasked(database: &str, error: &anyhow::Error, json: bool) -> String {
    let error = error_chain(error.as_ref());
    match json {
        true => format!("{}\n", json!({ "database": database, "error": error })),
        false => output::clean(&format!("database {database}: {error}\n")),
    }
}

/// Prints all; returns the highest of the exit codes, and whether the output is still read. Where
/// one of them has the thing that was asked for, the others need not say that they have not.
fn report(all: Vec<Ended>, json: bool, before: &str) -> anyhow::Result<(u8, bool)> {
    let is_found = all.iter().any(|ended| ended.result.is_ok());
    let (mut text, mut worst) = (before.to_owned(), 0);
    for Ended { database, text: own, result } in all {
        match result {
            Ok(code) => {
                worst = worst.max(code);
                text += &if json { own } else { format!("database {database}\n{own}\n") };
            }
            Err(error) if is_found && error.downcast_ref::<RelayError>().is_none() => {}
            Err(error) => {
                worst = worst.max(crate::exit_code(&error));
                text += &unasked(&database, &error, json);
            }
        }
    }
    Ok((worst, output::print(&text)?))
}

/// The databases of a command that no file names: one.
pub(super) fn lone(config: &OutboxConfig) -> Place {
    Place { database: config.postgres_target(), config: config.clone(), whole: None, is_named: false }
}
