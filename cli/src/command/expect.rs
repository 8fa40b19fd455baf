//! `oncebox expect add | remove | list | unhandled`.

use std::time::Duration;

use anyhow::ensure;
use clap::{Arg, ArgAction, ArgMatches};
use oncebox_connect::config::OutboxConfig;
use oncebox_operator::{Expectation, Expected, Operator, Stamp, SubjectPattern, Unhandled, pause_time};
use serde_json::json;
use tokio::task::JoinSet;

use super::{
    action,
    output::{self, time},
};

/// The arguments of the command.
pub(crate) enum Expect {
    /// With the connection to the database of the inbox, where the file names that one.
    Add(Expected, Option<Box<OutboxConfig>>, action::Run),
    Remove {
        subject: String,
        handled_by: String,
        run: action::Run,
    },
    List {
        json: bool,
    },
    Unhandled {
        subject: Option<String>,
        handled_by: Option<String>,
        limit: usize,
        json: bool,
    },
}

pub(super) fn command(connection: impl Fn() -> Vec<Arg>) -> clap::Command {
    let subject = || {
        let subject = Arg::new("subject").long("subject").value_name("PATTERN");
        let subject = subject.value_parser(clap::value_parser!(SubjectPattern));
        subject.help("Messages with this subject; * is one token, a last > one or more")
    };
    let handled_by = || {
        let inbox = Arg::new("handled-by").long("handled-by").value_name("SCOPE");
        inbox.value_parser(action::bounded(255)).help("The inbox: the scope of a consumer, service:handler")
    };
    let run = || action::who();
    let within = Arg::new("within").long("within").value_name("TIME").value_parser(pause_time);
    let inbox_in = Arg::new("in").long("in").value_name("DATABASE").value_parser(action::bounded(255));
    let unseen = Arg::new("unseen").long("unseen").action(ArgAction::SetTrue);
    let add = clap::Command::new("add")
        .about("Expect messages with a subject in an inbox within a time of their commit")
        .args([subject().required(true), handled_by().required(true)])
        .arg(within.required(true).help("The time from the commit on: 90s, 15m, 2h, 1d"))
        .arg(inbox_in.help("The database of the inbox, by its name in the file of the relay's databases"))
        .arg(unseen.help("Also if no consumer with that scope has registered in this database"));
    let remove = clap::Command::new("remove").about("Expect them no more");
    let list = clap::Command::new("list").about("List what is expected, and how many messages are missing");
    let limit = Arg::new("limit").long("limit").value_name("N").default_value("100");
    let limit = limit
        .value_parser(clap::value_parser!(u32).range(1..=10_000))
        .help("Messages that are listed, at most");
    let unhandled =
        clap::Command::new("unhandled").about("List the messages that are missing, the oldest first");
    clap::Command::new("expect")
        .about("Find messages that no consumer has handled in time")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(add.args(run()).args(connection()))
        .subcommand(
            remove
                .args([subject().required(true), handled_by().required(true)])
                .args(run())
                .args(connection()),
        )
        .subcommand(list.arg(action::json()).args(connection()))
        .subcommand(unhandled.args([subject(), handled_by(), limit]).arg(action::json()).args(connection()))
}

impl Expect {
    pub(super) fn new(name: &str, flags: &ArgMatches) -> Self {
        let json = flags.get_flag("json");
        let text = |name| flags.try_get_one::<String>(name).ok().flatten().cloned();
        let pattern = flags.try_get_one::<SubjectPattern>("subject").ok().flatten();
        let run = || action::Run::new(flags);
        let handled_by = text("handled-by");
        match (name, pattern, handled_by) {
            ("add", Some(subject), Some(handled_by)) => Self::Add(
                Expected {
                    subject: subject.clone(),
                    handled_by,
                    within: flags.get_one("within").copied().unwrap_or_default(),
                    inbox_database: text("in"),
                    is_unseen: flags.get_flag("unseen"),
                },
                None,
                run(),
            ),
            ("remove", Some(subject), Some(handled_by)) => {
                Self::Remove { subject: subject.as_str().to_owned(), handled_by, run: run() }
            }
            ("unhandled", subject, handled_by) => Self::Unhandled {
                subject: subject.map(|subject| subject.as_str().to_owned()),
                handled_by,
                limit: flags.get_one::<u32>("limit").map_or(100, |limit| *limit as usize),
                json,
            },
            _ => Self::List { json },
        }
    }

    /// Also looks in the database of the inbox, which the file names.
    pub(super) fn looking_in(self, inbox: OutboxConfig) -> Self {
        match self {
            Self::Add(expected, _, run) => Self::Add(expected, Some(Box::new(inbox)), run),
            other => other,
        }
    }

    /// The name of the inbox's database, of an expectation that is added.
    pub(super) fn inbox_database(&self) -> Option<&str> {
        let Self::Add(expected, ..) = self else { return None };
        expected.inbox_database.as_deref()
    }

    pub(super) async fn run(self, config: &OutboxConfig) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        let text = match self {
            Self::Add(expected, inbox, run) => {
                if let Some(inbox) = &inbox {
                    let there = Operator::connect(inbox, Stamp::default(), &mut tasks).await?;
                    there.check_expected(&expected).await?;
                }
                let operator = Operator::connect(config, run.stamp.clone(), &mut tasks).await?;
                operator.expect(&expected).await?;
                added(&run, &expected, inbox.is_some())?
            }
            Self::Remove { subject, handled_by, run } => {
                let operator = Operator::connect(config, run.stamp.clone(), &mut tasks).await?;
                ensure!(
                    operator.expect_no_more(&subject, &handled_by).await?,
                    "messages to {subject} are not expected in {handled_by}; nothing was done. See `oncebox expect list`"
                );
                removed(&run, &subject, &handled_by)?
            }
            Self::List { json } => {
                let operator = Operator::connect(config, Stamp::default(), &mut tasks).await?;
                let all = operator.expectations().await?;
                output::listed(json, &all, EXPECTED, expectation)?
            }
            Self::Unhandled { subject, handled_by, limit, json } => {
                let operator = Operator::connect(config, Stamp::default(), &mut tasks).await?;
                let found = operator.unhandled(subject.as_deref(), handled_by.as_deref(), limit).await?;
                output::listed(json, &found, UNHANDLED, unhandled)?
            }
        };
        output::print(&text)?;
        Ok(())
    }
}

fn added(run: &action::Run, expected: &Expected, is_checked: bool) -> anyhow::Result<String> {
    let Expected { subject, handled_by, within, inbox_database, .. } = expected;
    let subject = subject.as_str();
    if run.json {
        return Ok(output::json_lines(&[json!({
            "action": "expected",
            "subject": subject,
            "handled_by": handled_by,
            "within_seconds": within.as_secs_f64(),
            "inbox_database": inbox_database,
        })])?);
    }
    let (place, unchecked) = match inbox_database {
        None => (" in this database".to_owned(), ""),
        Some(name) if is_checked => (format!(" in database {name}"), ""),
        Some(name) => (
            format!(" in database {name}"),
            "That database and its inbox were not checked: name both databases in a file (--config) for that.\n",
        ),
    };
    let within = humantime::format_duration(*within);
    Ok(format!(
        "expected: messages to {subject} in the inbox of {handled_by}{place}, within {within} of their commit\n{unchecked}"
    ))
}

fn removed(run: &action::Run, subject: &str, handled_by: &str) -> anyhow::Result<String> {
    if run.json {
        let action = "expected no more";
        return Ok(output::json_lines(&[
            json!({ "action": action, "subject": subject, "handled_by": handled_by }),
        ])?);
    }
    Ok(format!("expected no more: messages to {subject} in the inbox of {handled_by}\n"))
}

const EXPECTED: [&str; 7] = ["SUBJECT", "HANDLED BY", "WITHIN", "DATABASE", "LOOKED AT", "MISSING", "OLDEST"];
fn expectation(expected: &Expectation) -> [String; 7] {
    let looked = |seconds: f64| format!("{seconds:.0} s ago");
    [
        expected.subject.clone(),
        expected.handled_by.clone(),
        humantime::format_duration(Duration::from_secs_f64(expected.within_seconds)).to_string(),
        expected.inbox_database.clone().unwrap_or_else(|| "this one".to_owned()),
        expected.looked_seconds.map_or_else(|| "never".to_owned(), looked),
        expected.unhandled.to_string(),
        expected.oldest_key.clone().unwrap_or_default(),
    ]
}

const UNHANDLED: [&str; 4] = ["KEY", "SUBJECT", "NOT HANDLED BY", "ENQUEUED"];
fn unhandled(message: &Unhandled) -> [String; 4] {
    [message.key.clone(), message.subject.clone(), message.handled_by.clone(), time(message.enqueued_at)]
}
