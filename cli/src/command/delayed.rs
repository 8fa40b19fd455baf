//! `oncebox outbox delayed`: list and cancel.

use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command};
use oncebox_connect::config::OutboxConfig;
use oncebox_operator::{DelayedMessage, DelayedSelection, Operator, Stamp, SubjectPattern};
use tokio::task::JoinSet;

use super::{
    action,
    output::{self, time},
};

const SELECTORS: [&str; 3] = ["key", "subject", "ordering-key"];

/// The arguments of the command.
pub(crate) enum Delayed {
    List { selection: DelayedSelection, limit: usize, json: bool },
    Cancel { selection: DelayedSelection, limit: Option<u64>, run: action::Run },
}

pub(super) fn command(connection: impl Fn() -> Vec<Arg>) -> Command {
    let limit = Arg::new("limit")
        .long("limit")
        .value_name("N")
        .value_parser(clap::value_parser!(u32).range(1..=100_000))
        .default_value("1000")
        .help("Messages at most; 1 to 100000");
    let list = Command::new("list")
        .about("List delayed messages in the order of their times")
        .args(selection())
        .arg(limit)
        .arg(action::json());
    let all = Arg::new("all").long("all").action(ArgAction::SetTrue).help("Every delayed message");
    let group = ArgGroup::new("selection").args(SELECTORS).arg("all").required(true).multiple(true);
    let cancel = Command::new("cancel")
        .about("Give delayed messages up for good, before they are sent")
        .args(selection())
        .arg(all.conflicts_with_all(SELECTORS))
        .group(group)
        .args(action::run())
        .args(action::of_rows());
    Command::new("delayed")
        .about("Look at messages that wait for their time; cancel them")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(list)
        .subcommand(cancel)
        .mut_subcommands(|inner| inner.args(connection()))
}

fn selection() -> [Arg; 3] {
    let text = |name, value, help| Arg::new(name).long(name).value_name(value).help(help);
    let subject =
        text("subject", "PATTERN", "Messages with this subject; * is one token, a last > one or more");
    [
        text("key", "KEY", "The message with this key"),
        subject.value_parser(clap::value_parser!(SubjectPattern)),
        text("ordering-key", "KEY", "Messages with this ordering key"),
    ]
}

impl Delayed {
    pub(super) fn new(name: &str, flags: &ArgMatches) -> Self {
        let text = |name| flags.get_one::<String>(name).cloned();
        let selection = DelayedSelection {
            key: text("key"),
            subject: flags.get_one::<SubjectPattern>("subject").cloned(),
            ordering_key: text("ordering-key"),
            ..DelayedSelection::default()
        };
        if name == "cancel" {
            let limit = flags.get_one::<u64>("limit").copied();
            return Self::Cancel { selection, limit, run: action::Run::new(flags) };
        }
        let limit = flags.get_one::<u32>("limit").map_or(1000, |limit| *limit as usize);
        Self::List { selection, limit, json: flags.get_flag("json") }
    }

    pub(super) async fn run(self, config: &OutboxConfig) -> anyhow::Result<()> {
        const SOUGHT: &str = "delayed message";
        let mut tasks = JoinSet::new();
        match self {
            Self::List { selection, limit, json } => {
                let mut operator = Operator::connect(config, Stamp::default(), &mut tasks).await?;
                // One more shows that there are more.
                let mut messages = operator.delayed(&selection, limit + 1).await?;
                if messages.is_empty() && !selection.is_all() {
                    return Err(action::nothing(&mut operator, SOUGHT, selection.key.as_deref()).await);
                }
                if messages.len() > limit {
                    messages.truncate(limit);
                    tracing::warn!(limit, "there are more messages; see them with a higher --limit");
                }
                output::print(&if json { output::json_lines(&messages)? } else { table(&messages) })?;
            }
            Self::Cancel { selection, limit, run } => {
                let mut operator = run.connect(config, &mut tasks).await?;
                let mut rows = run.rows(&operator, "outbox delayed cancel").await?;
                if let Some(rows) = &mut rows {
                    operator.find_delayed(&selection, limit, rows).await?;
                    run.check(rows)?;
                }
                let done = match &rows {
                    Some(rows) if run.dry_run => rows.count(),
                    only => operator.cancel_delayed(&selection, limit, only.as_ref()).await?,
                };
                run.report_rows("cancel", "cancelled", done, rows.as_ref())?;
                if done == 0 {
                    return Err(action::nothing(&mut operator, SOUGHT, selection.key.as_deref()).await);
                }
            }
        }
        Ok(())
    }
}

fn table(messages: &[DelayedMessage]) -> String {
    let rows: Vec<[String; 6]> = messages
        .iter()
        .map(|message| {
            [
                time(message.not_before),
                message.key.clone(),
                message.subject.clone(),
                message.ordering_key.clone().unwrap_or_default(),
                time(message.created_at),
                message.payload_bytes.to_string(),
            ]
        })
        .collect();
    output::table(["NOT BEFORE", "KEY", "SUBJECT", "ORDERING KEY", "ENQUEUED", "PAYLOAD BYTES"], &rows)
}
