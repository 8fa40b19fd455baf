//! Messages set aside: `oncebox outbox dead`, `oncebox outbox parked`, and `list` and `cancel` of
//! `oncebox outbox replay`.

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command};
use oncebox_connect::config::OutboxConfig;
use oncebox_operator::{
    CanaryOf, Operator, ParkedAction, ParkedDetails, ParkedKind, ParkedMessage, ParkedSelection, Stamp,
    SubjectPattern,
};
use tokio::task::JoinSet;

use super::{
    action, canary, edit,
    output::{self, time},
};

const SELECTORS: [&str; 7] = ["id", "key", "subject", "reason", "reason-is", "subject-is", "ordering-key"];

/// The arguments of the command.
pub(crate) enum Asked {
    List { kind: ParkedKind, selection: ParkedSelection, limit: usize, json: bool },
    Show { key: String, payload: bool, json: bool },
    Act { action: ParkedAction, selection: ParkedSelection, limit: Option<u64>, run: action::Run },
}

/// `dead` and `parked`.
pub(super) fn commands(connection: impl Fn() -> Vec<Arg>) -> [Command; 2] {
    let group =
        |name, about| Command::new(name).about(about).subcommand_required(true).arg_required_else_help(true);
    let dead = group("dead", "Look at messages that were given up; retry, edit or discard them")
        .subcommand(list(ParkedKind::Dead, "List dead messages in the order of their ids"))
        .subcommand(show())
        .subcommand(
            acting("retry", ParkedKind::Dead, "Make dead messages due again, with no attempt spent")
                .args(canary::options()),
        )
        .subcommand(edit::of_messages())
        .subcommand(acting(
            "discard",
            ParkedKind::Dead,
            "Give dead messages up for good; what waits behind them goes on",
        ));
    let parked = group("parked", "Look at messages that are set aside to be tried again; discard them")
        .subcommand(list(ParkedKind::Parked, "List parked messages, and those that wait behind them"))
        .subcommand(show())
        .subcommand(acting(
            "discard",
            ParkedKind::Parked,
            "Give parked messages up for good, before they die; what waits behind them goes on",
        ));
    [dead, parked].map(|command| command.mut_subcommands(|inner| inner.args(connection())))
}

/// `list` and `cancel` of `replay`.
pub(super) fn of_replays(connection: impl Fn() -> Vec<Arg>) -> [Command; 2] {
    [
        list(ParkedKind::Replay, "List replays that are still to be sent"),
        acting(
            "cancel",
            ParkedKind::Replay,
            "Give up replays that are still to be sent; what waits behind them goes on",
        ),
    ]
    .map(|command| command.args(connection()))
}

fn list(kind: ParkedKind, about: &'static str) -> Command {
    let limit = Arg::new("limit")
        .long("limit")
        .value_name("N")
        .value_parser(clap::value_parser!(u32).range(1..=100_000))
        .default_value("1000")
        .help("Messages at most; 1 to 100000");
    Command::new("list").about(about).args(selection(kind)).arg(limit).arg(action::json())
}

fn show() -> Command {
    let payload = Arg::new("payload")
        .long("payload")
        .action(ArgAction::SetTrue)
        .help("With the payload, which may hold what others must not see");
    Command::new("show")
        .about("Show a parked or dead message, with what waits behind it")
        .arg(Arg::new("key").value_name("KEY").required(true).help("The message's key"))
        .arg(payload)
        .arg(action::json())
}

fn acting(name: &'static str, kind: ParkedKind, about: &'static str) -> Command {
    let help = format!("Every {}", noun(kind));
    let all = Arg::new("all").long("all").action(ArgAction::SetTrue).help(help);
    let selection = selection(kind);
    let selectors: Vec<_> = selection.iter().map(|arg| arg.get_id().clone()).collect();
    let group = ArgGroup::new("selection").args(&selectors).arg("all").required(true).multiple(true);
    Command::new(name)
        .about(about)
        .args(selection)
        .arg(all.conflicts_with_all(selectors))
        .group(group)
        .args(action::run())
        .args(action::of_rows())
}

fn selection(kind: ParkedKind) -> Vec<Arg> {
    let text = |name, value, help| Arg::new(name).long(name).value_name(value).help(help);
    let helps = [
        ("ID", "The message with this id, as the list shows it"),
        ("KEY", "The message with this key"),
        ("PATTERN", "Messages with this subject; * is one token, a last > one or more"),
        ("TEXT", "Messages whose reason contains this text, upper or lower case"),
        ("LINE", "Messages whose reason has exactly this first line, which may be empty"),
        ("SUBJECT", "Messages with exactly this subject, which is no pattern"),
        ("KEY", "Messages with this ordering key"),
    ];
    let of_all = SELECTORS.into_iter().zip(helps).map(|(name, (value, help))| match name {
        "subject" => text(name, value, help).value_parser(clap::value_parser!(SubjectPattern)),
        "id" => text(name, value, help).value_parser(clap::value_parser!(i64).range(1..)),
        _ => text(name, value, help),
    });
    let request = text("request", "NAME", "Replays that were asked for under this name");
    of_all.chain((kind == ParkedKind::Replay).then_some(request)).collect()
}

fn noun(kind: ParkedKind) -> &'static str {
    match kind {
        ParkedKind::Dead => "dead message",
        ParkedKind::Parked => "parked message",
        ParkedKind::Replay => "replay that is still to be sent",
    }
}

impl Asked {
    /// Of a command below the one for `kind`.
    pub(super) fn new(kind: ParkedKind, name: &str, flags: &ArgMatches) -> Self {
        if name == "show" {
            let key = flags.get_one::<String>("key").cloned().unwrap_or_default();
            return Self::Show { key, payload: flags.get_flag("payload"), json: flags.get_flag("json") };
        }
        let text = |name| flags.try_get_one::<String>(name).ok().flatten().cloned();
        let selection = ParkedSelection {
            id: flags.get_one::<i64>("id").copied(),
            reason_is: text("reason-is"),
            subject_is: text("subject-is"),
            key: text("key"),
            subject: flags.get_one::<SubjectPattern>("subject").cloned(),
            reason: text("reason"),
            ordering_key: text("ordering-key"),
            request: text("request"),
            ..ParkedSelection::default()
        };
        let action = match name {
            "retry" => ParkedAction::Retry,
            "discard" | "cancel" => ParkedAction::GiveUp(kind),
            _ => {
                let limit = flags.get_one::<u32>("limit").map_or(1000, |limit| *limit as usize);
                return Self::List { kind, selection, limit, json: flags.get_flag("json") };
            }
        };
        Self::Act {
            action,
            selection,
            limit: flags.get_one::<u64>("limit").copied(),
            run: action::Run::new(flags),
        }
    }

    pub(super) async fn run(self, config: &OutboxConfig) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        match self {
            Self::List { kind, selection, limit, json } => {
                let mut operator = Operator::connect(config, Stamp::default(), &mut tasks).await?;
                // One more shows that there are more.
                let mut messages = operator.parked(kind, &selection, limit + 1).await?;
                if messages.is_empty() && selection != ParkedSelection::default() {
                    return Err(action::nothing(&mut operator, noun(kind), selection.key.as_deref()).await);
                }
                if messages.len() > limit {
                    messages.truncate(limit);
                    tracing::warn!(limit, "there are more messages; see them with a higher --limit");
                }
                output::print(&if json { output::json_lines(&messages)? } else { table(&messages) })?;
            }
            Self::Show { key, payload, json } => {
                let operator = Operator::connect(config, Stamp::default(), &mut tasks).await?;
                let message = operator.show(&key, payload).await?;
                let message = message.with_context(|| {
                    format!(
                        "no parked or dead message has the key {key:?}; if a consumer gave it up, see `oncebox inbox dead \
                         list`, else `oncebox trace`"
                    )
                })?;
                output::print(&if json { output::json_lines(&[message])? } else { details(&message) })?;
            }
            Self::Act { action, selection, limit, mut run } => {
                let mut operator = run.connect(config, &mut tasks).await?;
                let mut rows = run.rows(&operator, words(action)).await?;
                if let Some(rows) = &mut rows {
                    operator.find_parked(action.kind(), &selection, limit, rows).await?;
                    run.check(rows)?;
                }
                if let (Some(within), false) = (run.canary, run.dry_run) {
                    let of = CanaryOf::Messages(selection);
                    return canary::begin(&mut operator, of, limit, rows.as_ref(), within, run.json).await;
                }
                let done = match &rows {
                    Some(rows) if run.dry_run => rows.count(),
                    only => operator.act(action, &selection, limit, only.as_ref()).await?,
                };
                let (name, past, kind) = match action {
                    ParkedAction::Retry => ("retry", "retried", ParkedKind::Dead),
                    ParkedAction::GiveUp(ParkedKind::Replay) => {
                        ("cancel", "cancelled replays of", ParkedKind::Replay)
                    }
                    ParkedAction::GiveUp(kind) => ("discard", "discarded", kind),
                };
                run.undo = operator.last_discard().await?;
                run.report_rows(name, past, done, rows.as_ref())?;
                if done == 0 {
                    return Err(action::nothing(&mut operator, noun(kind), selection.key.as_deref()).await);
                }
            }
        }
        Ok(())
    }
}

/// The command of an action.
fn words(action: ParkedAction) -> &'static str {
    match action {
        ParkedAction::Retry => "outbox dead retry",
        ParkedAction::GiveUp(ParkedKind::Dead) => "outbox dead discard",
        ParkedAction::GiveUp(ParkedKind::Parked) => "outbox parked discard",
        ParkedAction::GiveUp(ParkedKind::Replay) => "outbox replay cancel",
    }
}

fn table(messages: &[ParkedMessage]) -> String {
    let rows: Vec<[String; 9]> = messages
        .iter()
        .map(|message| {
            [
                message.id.to_string(),
                message.key.clone(),
                replay(message),
                message.state.to_owned(),
                message.subject.clone(),
                message.ordering_key.clone().unwrap_or_default(),
                message.attempts.to_string(),
                message.died_at.or(message.next_attempt_at).map(time).unwrap_or_default(),
                message.reason.clone(),
            ]
        })
        .collect();
    let heads =
        ["ID", "KEY", "REPLAY", "STATE", "SUBJECT", "ORDERING KEY", "ATTEMPTS", "DIED OR NEXT", "REASON"];
    output::table(heads, &rows)
}

fn details(parked: &ParkedDetails) -> String {
    let message = &parked.message;
    let line = |name: &str, value: String| [name.to_owned(), value];
    let mut rows = vec![
        line("state", message.state.to_owned()),
        line("replay", replay(message)),
        line("id", message.id.to_string()),
        line("lane", message.lane.to_string()),
        line("subject", message.subject.clone()),
        line("ordering key", message.ordering_key.clone().unwrap_or_default()),
        line("reason", message.reason.clone()),
        line("attempts", message.attempts.to_string()),
        line("enqueued", time(message.created_at)),
        line("set aside", time(parked.parked_at)),
        line("died", message.died_at.map(time).unwrap_or_default()),
        line("next attempt", message.next_attempt_at.map(time).unwrap_or_default()),
        line("behind it", parked.behind.to_string()),
        line("headers", parked.headers.to_string()),
        line("payload bytes", message.payload_bytes.to_string()),
    ];
    rows.extend(parked.payload.iter().map(|shown| line("payload", shown.payload.clone())));
    output::table(["KEY", &message.key], &rows)
}

/// The number of the replay that is meant, where it is not the message itself.
fn replay(message: &ParkedMessage) -> String {
    if message.replay == 0 { String::new() } else { message.replay.to_string() }
}
