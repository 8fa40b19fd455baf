//! `oncebox dead list | show | retry | discard`.

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches};
use oncebox_relay::{
    Config, DeadAction, DeadMessage, DeadSelection, Operator, ParkedMessage, Stamp, SubjectPattern,
};
use tokio::task::JoinSet;

use super::{
    operator,
    output::{self, time},
};

/// What was asked for.
pub(crate) enum Dead {
    List { selection: DeadSelection, limit: usize, json: bool },
    Show { key: String, payload: bool, json: bool },
    Act { action: DeadAction, selection: DeadSelection, limit: Option<u64>, run: operator::Run },
}

pub(super) fn command(connection: impl Fn() -> Vec<Arg>) -> clap::Command {
    let limit = Arg::new("limit")
        .long("limit")
        .value_name("N")
        .value_parser(clap::value_parser!(u32).range(1..=100_000))
        .default_value("1000")
        .help("Messages at most; 1 to 100000");
    let acting = |name: &'static str, about: &'static str| {
        let all = Arg::new("all").long("all").action(ArgAction::SetTrue).help("Every dead message");
        clap::Command::new(name)
            .about(about)
            .args(selection())
            .arg(all.conflicts_with_all(["key", "subject", "reason", "ordering-key"]))
            .group(
                ArgGroup::new("selection")
                    .args(["key", "subject", "reason", "ordering-key", "all"])
                    .required(true)
                    .multiple(true),
            )
            .args(operator::run())
            .args(connection())
    };
    let list = clap::Command::new("list").about("List dead messages in the order of their ids");
    let show = clap::Command::new("show").about("Show a parked or dead message, with what waits behind it");
    clap::Command::new("dead")
        .about("Look at messages that were given up; retry or discard them")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(list.args(selection()).arg(limit).arg(operator::json()).args(connection()))
        .subcommand(
            show.arg(Arg::new("key").value_name("KEY").required(true).help("The message's key"))
                .arg(
                    Arg::new("payload")
                        .long("payload")
                        .action(ArgAction::SetTrue)
                        .help("With the payload, which may hold what others must not see"),
                )
                .arg(operator::json())
                .args(connection()),
        )
        .subcommand(acting("retry", "Make dead messages due again, with no attempt spent"))
        .subcommand(acting("discard", "Give dead messages up for good; what waits behind them goes on"))
}

fn selection() -> [Arg; 4] {
    let text = |name, value, help| Arg::new(name).long(name).value_name(value).help(help);
    [
        text("key", "KEY", "The message with this key"),
        text("subject", "PATTERN", "Messages with this subject; * is one token, a last > one or more")
            .value_parser(clap::value_parser!(SubjectPattern)),
        text("reason", "TEXT", "Messages whose reason contains this text, upper or lower case"),
        text("ordering-key", "KEY", "Messages with this ordering key"),
    ]
}

impl Dead {
    pub(super) fn new(matches: &ArgMatches) -> Self {
        let (name, flags) = matches.subcommand().expect("clap requires a subcommand");
        if name == "show" {
            let key = flags.get_one::<String>("key").cloned().unwrap_or_default();
            return Self::Show { key, payload: flags.get_flag("payload"), json: flags.get_flag("json") };
        }
        let text = |name| flags.get_one::<String>(name).cloned();
        let selection = DeadSelection {
            key: text("key"),
            subject: flags.get_one::<SubjectPattern>("subject").cloned(),
            reason: text("reason"),
            ordering_key: text("ordering-key"),
        };
        let action = match name {
            "retry" => DeadAction::Retry,
            "discard" => DeadAction::Discard,
            _ => {
                let limit = flags.get_one::<u32>("limit").map_or(1000, |limit| *limit as usize);
                return Self::List { selection, limit, json: flags.get_flag("json") };
            }
        };
        Self::Act {
            action,
            selection,
            limit: flags.get_one::<u64>("limit").copied(),
            run: operator::Run::new(flags),
        }
    }

    pub(super) async fn run(self, config: &Config) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        match self {
            Self::List { selection, limit, json } => {
                let operator = Operator::connect(config, Stamp::default(), &mut tasks).await?;
                // One more shows that there are more.
                let mut messages = operator.dead(&selection, limit + 1).await?;
                if messages.len() > limit {
                    messages.truncate(limit);
                    tracing::warn!(limit, "there are more dead messages; see them with a higher --limit");
                }
                output::print(&if json { output::json_lines(&messages)? } else { list(&messages) })?;
            }
            Self::Show { key, payload, json } => {
                let operator = Operator::connect(config, Stamp::default(), &mut tasks).await?;
                let message = operator.show(&key, payload).await?;
                let message =
                    message.with_context(|| format!("no parked or dead message has the key {key:?}"))?;
                output::print(&if json { output::json_lines(&[message])? } else { details(&message) })?;
            }
            Self::Act { action, selection, limit, run } => {
                let mut operator = Operator::connect(config, run.stamp.clone(), &mut tasks).await?;
                let done = operator.act(action, &selection, limit, run.dry_run).await?;
                let (name, past) = match action {
                    DeadAction::Retry => ("retry", "retried"),
                    DeadAction::Discard => ("discard", "discarded"),
                };
                run.report(name, past, done)?;
            }
        }
        Ok(())
    }
}

fn list(messages: &[DeadMessage]) -> String {
    let rows: Vec<[String; 7]> = messages
        .iter()
        .map(|message| {
            [
                message.id.to_string(),
                name(message),
                message.subject.clone(),
                message.ordering_key.clone().unwrap_or_default(),
                message.attempts.to_string(),
                message.died_at.map(time).unwrap_or_default(),
                message.reason.clone(),
            ]
        })
        .collect();
    output::table(["ID", "KEY", "SUBJECT", "ORDERING KEY", "ATTEMPTS", "DIED", "REASON"], &rows)
}

fn details(parked: &ParkedMessage) -> String {
    let message = &parked.message;
    let line = |name: &str, value: String| [name.to_owned(), value];
    let mut rows = vec![
        line("state", parked.state.to_owned()),
        line("id", message.id.to_string()),
        line("lane", message.lane.to_string()),
        line("subject", message.subject.clone()),
        line("ordering key", message.ordering_key.clone().unwrap_or_default()),
        line("reason", message.reason.clone()),
        line("attempts", message.attempts.to_string()),
        line("enqueued", time(message.created_at)),
        line("set aside", time(parked.parked_at)),
        line("died", message.died_at.map(time).unwrap_or_default()),
        line("next attempt", parked.next_attempt_at.map(time).unwrap_or_default()),
        line("behind it", parked.behind.to_string()),
        line("headers", parked.headers.to_string()),
        line("payload bytes", message.payload_bytes.to_string()),
    ];
    rows.extend(parked.payload.clone().map(|payload| line("payload", payload)));
    output::table(["KEY", &name(message)], &rows)
}

/// The key; a replay as the broker would know it.
fn name(message: &DeadMessage) -> String {
    match message.replay {
        0 => message.key.clone(),
        number => format!("{};r={number}", message.key),
    }
}
