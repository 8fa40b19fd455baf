//! `oncebox contract`: check contracts, compare two versions of them, export them; without a
//! server.

use std::{fmt::Write as _, path::Path};

use clap::{Arg, ArgAction, ArgMatches, Command};
use oncebox_contracts::{Contracts, Direction, Mistakes, Verdict};
use serde_json::json;

use super::action;

/// Exit code when a file or a message is wrong, or a change breaks something.
const WRONG: u8 = 1;

/// A text to print, with an exit code.
type Shown = (String, u8);

pub(super) fn command() -> Command {
    let file = |name, value, help| Arg::new(name).value_name(value).required(true).help(help);
    let messages = Arg::new("message").value_name("MESSAGE").num_args(1..).action(ArgAction::Append);
    let subject = Arg::new("subject").long("subject").value_name("SUBJECT").requires("message");
    let asyncapi = Arg::new("asyncapi").long("asyncapi").action(ArgAction::SetTrue).required(true);
    super::group("contract", "Check which schemas messages must fit, and what a change of them breaks")
        .subcommand(
            Command::new("check")
                .about("Check a file of contracts with its examples, and files with messages")
                .arg(file("file", "FILE", "The contracts"))
                .arg(messages.requires("subject").help("Files, each with the payload of a message"))
                .arg(subject.help("The subject of these messages")),
        )
        .subcommand(
            Command::new("diff")
                .about("Name the subjects whose consumers a change of the contracts breaks")
                .arg(file("old", "OLD", "The contracts as they are in production"))
                .arg(file("new", "NEW", "The contracts that are to replace them"))
                .arg(action::json()),
        )
        .subcommand(
            Command::new("export")
                .about("Print contracts as a document in another format")
                .arg(asyncapi.help("AsyncAPI 3.0, in JSON"))
                .arg(file("file", "FILE", "The contracts")),
        )
}

/// The text of the command, and its exit code.
pub(super) fn write(path: &[&str], flags: &ArgMatches) -> Option<(Vec<u8>, u8)> {
    let shown = match path {
        ["contract", "check"] => check(flags),
        ["contract", "diff"] => diff(flags),
        ["contract", "export"] => export(flags),
        _ => return None,
    };
    let (text, code) = shown.unwrap_or_else(|mistakes| (format!("{mistakes}\n"), WRONG));
    Some((text.into_bytes(), code))
}

fn read(flags: &ArgMatches, name: &str) -> Result<Contracts, Mistakes> {
    Contracts::read(Path::new(flags.get_one::<String>(name).map_or("", String::as_str)))
}

fn check(flags: &ArgMatches) -> Result<Shown, Mistakes> {
    let contracts = read(flags, "file")?;
    let mut text = String::new();
    for contract in contracts.all() {
        let consumers = named(&contract.consumers);
        let _ = writeln!(text, "{}: {consumers}", contract.subject);
    }
    let Some(subject) = flags.get_one::<String>("subject") else { return Ok((text, 0)) };
    if contracts.of(subject).is_none() {
        return Err(Mistakes(vec![format!(
            "{subject}: no contract has this subject, so nothing was checked"
        )]));
    }
    let mut code = 0;
    for path in flags.get_many::<String>("message").into_iter().flatten() {
        let payload = std::fs::read(path).map_err(|error| Mistakes(vec![format!("read {path}: {error}")]))?;
        if let Err(breach) = contracts.check(subject, &payload) {
            let _ = writeln!(text, "{path}: breaks the contract of {subject}: {breach}");
            code = WRONG;
        } else {
            let _ = writeln!(text, "{path}: fits the contract of {subject}");
        }
    }
    Ok((text, code))
}

fn named(consumers: &[String]) -> String {
    if consumers.is_empty() { "none is named".to_owned() } else { consumers.join(", ") }
}

fn diff(flags: &ArgMatches) -> Result<Shown, Mistakes> {
    let (old, new) = (read(flags, "old")?, read(flags, "new")?);
    let changes = old.diff(&new);
    let mut text = String::new();
    for change in &changes {
        let (direction, readers, senders) = match change.direction {
            Direction::Backward => ("backward", "NEW", "OLD"),
            Direction::Forward => ("forward", "OLD", "NEW"),
        };
        let (verdict, why) = match &change.verdict {
            Verdict::Breaks(why) => ("breaks", why),
            Verdict::CannotTell(why) => ("cannot tell", why),
        };
        if flags.get_flag("json") {
            let line = json!({ "subject": change.subject, "direction": direction, "verdict": verdict, "why": why,
                "consumers": change.consumers });
            let _ = writeln!(text, "{line}");
            continue;
        }
        let refuse = if verdict == "breaks" { "refuse" } else { "may refuse" };
        let _ = writeln!(
            text,
            "{}: {direction}: {verdict}: consumers of {readers} {refuse} messages of {senders}: {why} (consumers: {})",
            change.subject,
            named(&change.consumers)
        );
    }
    if changes.is_empty() && !flags.get_flag("json") {
        text.push_str("nothing breaks\n");
    }
    Ok((text, if changes.is_empty() { 0 } else { WRONG }))
}

fn export(flags: &ArgMatches) -> Result<Shown, Mistakes> {
    let document = read(flags, "file")?.asyncapi()?;
    Ok((format!("{document:#}\n"), 0))
}
