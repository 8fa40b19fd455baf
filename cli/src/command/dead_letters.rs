//! `oncebox inbox dead list | show | retry | discard`.

use anyhow::{Context as _, ensure};
use clap::{Arg, ArgAction, ArgGroup, ArgMatches};
use oncebox_connect::config::{Config, OutboxConfig};
use oncebox_operator::{
    CanaryOf, DeadLetter, DeadLetterDetails, DeadLetterSelection, Operator, RowSet, Stamp, SubjectPattern,
};
use tokio::task::JoinSet;

use super::{
    action, canary, edit,
    output::{self, time},
};

const SELECTORS: [&str; 8] = ["id", "key", "no-key", "scope", "subject", "reason", "reason-is", "subject-is"];

const NOTHING: &str = "no dead letter is selected; see `oncebox inbox dead list`, and with --no-key those of messages \
                       without a valid key: --id names one";

/// The arguments of the command.
pub(crate) enum DeadLetters {
    List { selection: DeadLetterSelection, limit: usize, json: bool },
    Show { id: i64, payload: bool, json: bool },
    Retry { selection: DeadLetterSelection, limit: Option<u64>, run: action::Run },
    Discard { selection: DeadLetterSelection, limit: Option<u64>, run: action::Run },
}

pub(super) fn command(connection: impl Fn() -> Vec<Arg>, both_servers: Vec<Arg>) -> clap::Command {
    let limit = Arg::new("limit")
        .long("limit")
        .value_name("N")
        .value_parser(clap::value_parser!(u32).range(1..=100_000))
        .default_value("1000")
        .help("Letters at most; 1 to 100000");
    let acting = |name: &'static str, about: &'static str| {
        let all = Arg::new("all").long("all").action(ArgAction::SetTrue).help("Every dead letter");
        clap::Command::new(name)
            .about(about)
            .args(selection())
            .arg(all.conflicts_with_all(SELECTORS))
            .group(ArgGroup::new("selection").args(SELECTORS).arg("all").required(true).multiple(true))
            .args(action::run())
            .args(action::of_rows())
    };
    let list = clap::Command::new("list").about("List dead letters in the order of their ids");
    let show = clap::Command::new("show").about("Show a dead letter, and how its key stands");
    clap::Command::new("dead")
        .about("Look at messages that inboxes gave up; retry, edit or discard them")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(list.args(selection()).arg(limit).arg(action::json()).args(connection()))
        .subcommand(
            show.arg(
                Arg::new("letter")
                    .value_name("ID")
                    .required(true)
                    .value_parser(clap::value_parser!(i64).range(1..))
                    .help("The letter's id, from the list"),
            )
            .arg(
                Arg::new("payload")
                    .long("payload")
                    .action(ArgAction::SetTrue)
                    .help("With the payload, which may hold what others must not see"),
            )
            .arg(action::json())
            .args(connection()),
        )
        .subcommand(
            acting("retry", "Have dead letters handled again: before those that wait behind them, or as new messages of JetStream")
                .args(canary::options())
                .args(both_servers.clone()),
        )
        .subcommand(edit::of_letters(both_servers))
        .subcommand(
            acting("discard", "Delete dead letters; their keys stay settled as dead, and those that wait behind them run").args(connection()),
        )
}

fn selection() -> [Arg; 8] {
    let text = |name, value, help| Arg::new(name).long(name).value_name(value).help(help);
    let no_key = Arg::new("no-key").long("no-key").action(ArgAction::SetTrue).conflicts_with("key");
    [
        text("id", "ID", "The letter with this id").value_parser(clap::value_parser!(i64).range(1..)),
        text("key", "KEY", "Letters with this key, of any scope and tenant"),
        no_key.help("Letters of messages that had no valid key"),
        text("scope", "SCOPE", "Letters of this consumer: service:handler"),
        text("subject", "PATTERN", "Letters with this subject; * is one token, a last > one or more")
            .value_parser(clap::value_parser!(SubjectPattern)),
        text("reason", "TEXT", "Letters whose reason contains this text, upper or lower case"),
        text("reason-is", "LINE", "Letters whose reason has exactly this first line, which may be empty"),
        text("subject-is", "SUBJECT", "Letters with exactly this subject, which is no pattern"),
    ]
}

impl DeadLetters {
    pub(super) fn new(name: &str, flags: &ArgMatches) -> Self {
        if name == "show" {
            let id = flags.get_one::<i64>("letter").copied().unwrap_or_default();
            return Self::Show { id, payload: flags.get_flag("payload"), json: flags.get_flag("json") };
        }
        let text = |name| flags.get_one::<String>(name).cloned();
        let selection = DeadLetterSelection {
            id: flags.get_one::<i64>("id").copied(),
            key: text("key"),
            no_key: flags.get_flag("no-key"),
            scope: text("scope"),
            subject: flags.get_one::<SubjectPattern>("subject").cloned(),
            reason: text("reason"),
            reason_is: text("reason-is"),
            subject_is: text("subject-is"),
            ..DeadLetterSelection::default()
        };
        let limit = || flags.get_one::<u64>("limit").copied();
        match name {
            "retry" => Self::Retry { selection, limit: limit(), run: action::Run::new(flags) },
            "discard" => Self::Discard { selection, limit: limit(), run: action::Run::new(flags) },
            _ => {
                let limit = flags.get_one::<u32>("limit").map_or(1000, |limit| *limit as usize);
                Self::List { selection, limit, json: flags.get_flag("json") }
            }
        }
    }

    /// Whether it needs NATS: of a canary, the relays do.
    pub(super) fn publishes(&self) -> bool {
        matches!(self, Self::Retry { run, .. } if !run.dry_run && run.canary.is_none())
    }

    pub(super) async fn run(self, outbox: &OutboxConfig, config: Option<&Config>) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        match self {
            Self::List { selection, limit, json } => {
                let operator = Operator::connect(outbox, Stamp::default(), &mut tasks).await?;
                // One more shows that there are more.
                let mut letters = operator.dead_letters(&selection, limit + 1).await?;
                ensure!(!letters.is_empty() || selection == DeadLetterSelection::default(), NOTHING);
                if letters.len() > limit {
                    letters.truncate(limit);
                    tracing::warn!(limit, "there are more dead letters; see them with a higher --limit");
                }
                output::print(&if json { output::json_lines(&letters)? } else { list(&letters) })?;
            }
            Self::Show { id, payload, json } => {
                let operator = Operator::connect(outbox, Stamp::default(), &mut tasks).await?;
                let letter = operator.dead_letter(id, payload.then_some(i32::MAX)).await?;
                let letter = letter.with_context(|| format!("no dead letter has the id {id}"))?;
                output::print(&if json { output::json_lines(&[letter])? } else { details(&letter) })?;
            }
            Self::Retry { selection, limit, run } => {
                let mut operator = run.connect(outbox, &mut tasks).await?;
                let rows = look(&operator, "inbox dead retry", &selection, limit, &run).await?;
                if let (Some(within), false) = (run.canary, run.dry_run) {
                    let of = CanaryOf::Letters(selection);
                    return canary::begin(&mut operator, of, limit, rows.as_ref(), within, run.json).await;
                }
                let done = match config {
                    Some(config) => {
                        operator.retry_dead_letters(config, &selection, limit, rows.as_ref()).await?
                    }
                    None => rows.as_ref().map_or(0, RowSet::count),
                };
                run.report_rows("retry", "retried", done, rows.as_ref())?;
                ensure!(done > 0, NOTHING);
            }
            Self::Discard { selection, limit, mut run } => {
                let mut operator = run.connect(outbox, &mut tasks).await?;
                let rows = look(&operator, "inbox dead discard", &selection, limit, &run).await?;
                let done = match &rows {
                    Some(rows) if run.dry_run => rows.count(),
                    only => operator.discard_dead_letters(&selection, limit, only.as_ref()).await?,
                };
                run.undo = operator.last_discard().await?;
                run.report_rows("discard", "discarded", done, rows.as_ref())?;
                ensure!(done > 0, NOTHING);
            }
        }
        Ok(())
    }
}

/// The letters of a dry run, or those that one has shown.
async fn look(
    operator: &Operator,
    command: &'static str,
    selection: &DeadLetterSelection,
    limit: Option<u64>,
    run: &action::Run,
) -> anyhow::Result<Option<RowSet>> {
    let mut rows = run.rows(operator, command).await?;
    if let Some(rows) = &mut rows {
        operator.find_dead_letters(selection, limit, rows).await?;
        run.check(rows)?;
    }
    Ok(rows)
}

fn list(letters: &[DeadLetter]) -> String {
    let rows: Vec<[String; 8]> = letters
        .iter()
        .map(|letter| {
            [
                letter.id.to_string(),
                letter.scope.clone(),
                letter.key.clone().unwrap_or_else(|| format!("none: --id {}", letter.id)),
                letter.subject.clone(),
                letter.deliveries.to_string(),
                letter.behind.map(|behind| behind.to_string()).unwrap_or_default(),
                time(letter.died_at),
                letter.reason.clone(),
            ]
        })
        .collect();
    output::table(["ID", "SCOPE", "KEY", "SUBJECT", "DELIVERIES", "BEHIND", "DIED", "REASON"], &rows)
}

fn details(opened: &DeadLetterDetails) -> String {
    let letter = &opened.letter;
    let line = |name: &str, value: String| [name.to_owned(), value];
    let origin = letter.stream.as_ref().zip(letter.stream_sequence);
    let mut rows = vec![
        line("scope", letter.scope.clone()),
        line("tenant", letter.tenant.clone()),
        line("key", letter.key.clone().unwrap_or_else(|| format!("none: act on it with --id {}", letter.id))),
        line("the key is now", opened.key_status.clone().unwrap_or_else(|| "free".to_owned())),
        line("subject", letter.subject.clone()),
        line("stream", origin.map(|(stream, number)| format!("{stream} {number}")).unwrap_or_default()),
        line("stored", opened.stored_at.map(time).unwrap_or_default()),
        line("deliveries", letter.deliveries.to_string()),
        line("reason", letter.reason.clone()),
        line("died", time(letter.died_at)),
        line("ordering key", letter.ordering_key.clone().unwrap_or_default()),
        line("behind it", letter.behind.map(|behind| behind.to_string()).unwrap_or_default()),
        line("headers", opened.headers.to_string()),
        line("payload bytes", letter.payload_bytes.to_string()),
    ];
    rows.extend(opened.payload.iter().map(|shown| line("payload", shown.payload.clone())));
    output::table(["ID", &letter.id.to_string()], &rows)
}
