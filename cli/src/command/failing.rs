//! `oncebox inbox failing list | retry | bury`.

use anyhow::ensure;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches};
use oncebox_connect::config::{Config, OutboxConfig};
use oncebox_operator::{
    FailingDone, FailingId, FailingMessage, FailingReason, FailingSelection, Operator, RowSet, Stamp,
    SubjectPattern,
};
use tokio::task::JoinSet;

use super::{
    action,
    output::{self, messages, time},
};

const SELECTORS: [&str; 7] = ["id", "key", "scope", "subject", "reason", "reason-is", "subject-is"];

const NOTHING: &str = "no failing message is selected; see `oncebox inbox failing list`";

/// The arguments of the command.
pub(crate) enum Failing {
    List { selection: FailingSelection, limit: usize, by_reason: bool, json: bool },
    Retry { selection: FailingSelection, limit: Option<u64>, run: action::Run },
    Bury { selection: FailingSelection, limit: Option<u64>, run: action::Run },
}

pub(super) fn command(connection: Vec<Arg>, both_servers: impl Fn() -> Vec<Arg>) -> clap::Command {
    let limit = Arg::new("limit")
        .long("limit")
        .value_name("N")
        .value_parser(clap::value_parser!(u32).range(1..=100_000))
        .default_value("1000")
        .help("Messages, or reasons, at most; 1 to 100000");
    let by_reason = Arg::new("by-reason")
        .long("by-reason")
        .action(ArgAction::SetTrue)
        .help("Count them by inbox and reason, the most frequent first");
    let acting = |name: &'static str, about: &'static str, more: &'static str| {
        let all = Arg::new("all").long("all").action(ArgAction::SetTrue).help("Every failing message");
        clap::Command::new(name)
            .about(about)
            .long_about(format!("{about}\n\n{more}"))
            .args(selection())
            .arg(all.conflicts_with_all(SELECTORS))
            .group(ArgGroup::new("selection").args(SELECTORS).arg("all").required(true).multiple(true))
            .args(action::run())
            .args(action::of_rows())
            .args(both_servers())
    };
    clap::Command::new("failing")
        .about("Look at messages whose handlers fail; run them now, or give them up")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            clap::Command::new("list")
                .about("List failing messages, why, and when they are run again")
                .args(selection())
                .arg(by_reason)
                .arg(limit)
                .arg(action::json())
                .args(connection),
        )
        .subcommand(acting(
            "retry",
            "Run failing messages now, not after their pause",
            "Publishes a copy of each message at the end of its stream. The first of the two that succeeds counts; the \
             inbox answers the other as a duplicate. A key gets one copy for each time that it fails: a message that is \
             due already is left alone. A message with an ordering key may still wait behind the original.",
        ))
        .subcommand(acting(
            "bury",
            "Give failing messages up: each becomes a dead letter of its inbox",
            "Fetches each message from its stream, so that the dead letter has all of it. A message that the stream has \
             no more is forgotten, since nobody delivers it again.",
        ))
}

fn selection() -> [Arg; 7] {
    let text = |name, value, help| Arg::new(name).long(name).value_name(value).help(help);
    [
        text("id", "ID", "The message with this id: a JSON array, from the list with --json")
            .value_parser(clap::value_parser!(FailingId)),
        text("key", "KEY", "Messages with this key, of any scope and tenant"),
        text("scope", "SCOPE", "Messages of this consumer: service:handler"),
        text("subject", "PATTERN", "Messages with this subject; * is one token, a last > one or more")
            .value_parser(clap::value_parser!(SubjectPattern)),
        text("reason", "TEXT", "Messages whose reason contains this text, upper or lower case"),
        text("reason-is", "LINE", "Messages whose reason has exactly this first line, which may be empty"),
        text("subject-is", "SUBJECT", "Messages with exactly this subject, which is no pattern"),
    ]
}

impl Failing {
    pub(super) fn new(name: &str, flags: &ArgMatches) -> Self {
        let text = |name| flags.get_one::<String>(name).cloned();
        let selection = FailingSelection {
            key: text("key"),
            scope: text("scope"),
            subject: flags.get_one::<SubjectPattern>("subject").cloned(),
            reason: text("reason"),
            reason_is: text("reason-is"),
            subject_is: text("subject-is"),
            id: flags.get_one::<FailingId>("id").cloned(),
            ..FailingSelection::default()
        };
        let limit = || flags.get_one::<u64>("limit").copied();
        match name {
            "retry" => Self::Retry { selection, limit: limit(), run: action::Run::new(flags) },
            "bury" => Self::Bury { selection, limit: limit(), run: action::Run::new(flags) },
            _ => {
                let limit = flags.get_one::<u32>("limit").map_or(1000, |limit| *limit as usize);
                let (by_reason, json) = (flags.get_flag("by-reason"), flags.get_flag("json"));
                Self::List { selection, limit, by_reason, json }
            }
        }
    }

    /// Whether it needs NATS.
    pub(super) fn needs_nats(&self) -> bool {
        matches!(self, Self::Retry { run, .. } | Self::Bury { run, .. } if !run.dry_run)
    }

    pub(super) async fn run(self, outbox: &OutboxConfig, config: Option<&Config>) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        match self {
            Self::List { selection, limit, by_reason, json } => {
                let operator = Operator::connect(outbox, Stamp::default(), &mut tasks).await?;
                let text = match by_reason {
                    true => by_reasons(&operator, &selection, limit, json).await?,
                    false => listed(&operator, &selection, limit, json).await?,
                };
                output::print(&text)?;
            }
            Self::Retry { selection, limit, run } => {
                let mut operator = run.connect(outbox, &mut tasks).await?;
                let (counted, rows) = look(&operator, "inbox failing retry", &selection, limit, &run).await?;
                let found = match config {
                    Some(config) => operator.retry_failing(config, &selection, limit, rows.as_ref()).await?,
                    None => counted,
                };
                run.report_rows("retry", "retried", found.done, rows.as_ref())?;
                explain(&found, "due already: run now, unless the consumer does not run", "left alone")?;
            }
            Self::Bury { selection, limit, run } => {
                let mut operator = run.connect(outbox, &mut tasks).await?;
                let (counted, rows) = look(&operator, "inbox failing bury", &selection, limit, &run).await?;
                let found = match config {
                    Some(config) => operator.bury_failing(config, &selection, limit, rows.as_ref()).await?,
                    None => counted,
                };
                run.report_rows("bury", "buried", found.done, rows.as_ref())?;
                explain(&found, "at work: try again", "forgotten")?;
            }
        }
        Ok(())
    }
}

/// The messages of a dry run, or those that one has shown.
async fn look(
    operator: &Operator,
    command: &'static str,
    selection: &FailingSelection,
    limit: Option<u64>,
    run: &action::Run,
) -> anyhow::Result<(FailingDone, Option<RowSet>)> {
    let mut rows = run.rows(operator, command).await?;
    let mut counted = FailingDone::default();
    if let Some(rows) = &mut rows {
        let is_retry = command.ends_with("retry");
        counted = operator.count_failing(selection, limit, is_retry, rows).await?;
        run.check(rows)?;
    }
    Ok((counted, rows))
}

/// Says which messages were left alone, and why. An error when none was found.
fn explain(found: &FailingDone, busy: &str, gone: &str) -> anyhow::Result<()> {
    for (count, done, why) in [
        (found.busy, "left alone", busy),
        (found.gone, gone, "not in the stream any more: nobody delivers it again"),
        (found.elsewhere, "left alone", "from no stream: nobody can fetch it"),
        (
            found.incomplete,
            "left alone",
            "its payload is in no bucket: have it put again with `oncebox outbox replay --key`, where it was enqueued",
        ),
    ] {
        if count > 0 {
            tracing::warn!("{} {done}, {why}", messages(count));
        }
    }
    ensure!(found.all() > 0, NOTHING);
    Ok(())
}

async fn listed(
    operator: &Operator,
    selection: &FailingSelection,
    limit: usize,
    json: bool,
) -> anyhow::Result<String> {
    // One more shows that there are more.
    let mut failing = operator.failing(selection, limit + 1).await?;
    ensure!(!failing.is_empty() || *selection == FailingSelection::default(), NOTHING);
    warn_of_more(&mut failing, limit);
    Ok(if json { output::json_lines(&failing)? } else { list(&failing) })
}

async fn by_reasons(
    operator: &Operator,
    selection: &FailingSelection,
    limit: usize,
    json: bool,
) -> anyhow::Result<String> {
    let mut reasons = operator.failing_reasons(selection, limit + 1).await?;
    ensure!(!reasons.is_empty() || *selection == FailingSelection::default(), NOTHING);
    warn_of_more(&mut reasons, limit);
    Ok(if json { output::json_lines(&reasons)? } else { counts(&reasons) })
}

fn warn_of_more<T>(found: &mut Vec<T>, limit: usize) {
    if found.len() > limit {
        found.truncate(limit);
        tracing::warn!(limit, "there are more; see them with a higher --limit");
    }
}

fn list(failing: &[FailingMessage]) -> String {
    let row = |message: &FailingMessage| {
        let place = message.stream.as_ref().zip(message.stream_sequence);
        [
            message.scope.clone(),
            message.key.clone(),
            message.subject.clone().unwrap_or_default(),
            place.map(|(stream, sequence)| format!("{stream} {sequence}")).unwrap_or_default(),
            message.failures.to_string(),
            time(message.failed_at),
            message.due_at.map(time).unwrap_or_default(),
            message.reason.clone(),
        ]
    };
    let rows: Vec<[String; 8]> = failing.iter().map(row).collect();
    output::table(["SCOPE", "KEY", "SUBJECT", "STREAM", "FAILURES", "FAILED", "NEXT", "REASON"], &rows)
}

fn counts(reasons: &[FailingReason]) -> String {
    let row = |counted: &FailingReason| {
        [
            counted.scope.clone(),
            counted.messages.to_string(),
            time(counted.oldest_at),
            counted.next_at.map(time).unwrap_or_default(),
            counted.reason.clone(),
        ]
    };
    let rows: Vec<[String; 5]> = reasons.iter().map(row).collect();
    output::table(["SCOPE", "MESSAGES", "OLDEST", "NEXT", "REASON"], &rows)
}
