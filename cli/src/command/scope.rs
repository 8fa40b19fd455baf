//! `oncebox inbox scope list | change`.

use std::time::Duration;

use anyhow::anyhow;
use clap::{Arg, ArgGroup, ArgMatches, Command};
use oncebox_connect::{config::OutboxConfig, words::counted};
use oncebox_operator::{Keeps, Operator, ScopeChange, ScopeSettings, Stamp};
use serde_json::json;
use tokio::task::JoinSet;

use super::{action, list, output};

const SETTINGS: [&str; 4] = ["retention", "dead-letter-retention", "kind", "mode"];

/// The arguments of the command.
pub(crate) enum Scope {
    List { limit: u32, json: bool },
    Change { scope: String, change: Box<ScopeChange>, run: action::Run },
}

pub(super) fn command(connection: impl Fn() -> Vec<Arg>) -> Command {
    let text = |name, value, help| Arg::new(name).long(name).value_name(value).help(help);
    let run = action::without_limit().into_iter().map(|arg| match arg.get_id() == "dry-run" {
        true => arg.help("Only show the settings before and after; change nothing"),
        false => arg,
    });
    Command::new("scope")
        .about("Look at the settings of scopes, and change them")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("list")
                .about("List scopes, and how long they keep keys and dead letters")
                .args([list::limit("Scopes at most; 1 to 100000"), action::json()])
                .args(connection()),
        )
        .subcommand(
            Command::new("change")
                // The one that clap writes is too wide.
                .override_usage("oncebox inbox scope change <SCOPE> [OPTIONS]")
                .about("Change settings of a scope; its processes go by them from their next start on")
                .arg(
                    Arg::new("scope")
                        .value_name("SCOPE")
                        .required(true)
                        .help("The consumer or route: service:handler"),
                )
                .arg(
                    text("retention", "TIME", "How long it keeps keys: a time such as 30d, or forever")
                        .value_parser(keeps),
                )
                .arg(
                    text(
                        "dead-letter-retention",
                        "TIME",
                        "How long it keeps dead letters, and never shorter than keys",
                    )
                    .value_parser(humantime::parse_duration),
                )
                .arg(text("kind", "KIND", "Whose keys they are").value_parser(["consumer", "http"]))
                .arg(
                    text("mode", "MODE", "How its processes claim keys; stop all of them first")
                        .value_parser(["transaction", "lease"]),
                )
                .group(ArgGroup::new("settings").args(SETTINGS).required(true).multiple(true))
                .args(run)
                .args(connection()),
        )
}

fn keeps(text: &str) -> Result<Keeps, humantime::DurationError> {
    match text {
        "forever" => Ok(Keeps::Forever),
        text => humantime::parse_duration(text).map(Keeps::For),
    }
}

impl Scope {
    pub(super) fn new(name: &str, flags: &ArgMatches) -> Self {
        let text = |name| flags.get_one::<String>(name).cloned();
        if name == "list" {
            let limit = flags.get_one::<u32>("limit").copied().unwrap_or(1000);
            return Self::List { limit, json: flags.get_flag("json") };
        }
        let change = ScopeChange {
            retention: flags.get_one::<Keeps>("retention").copied(),
            dead_letter_retention: flags.get_one::<Duration>("dead-letter-retention").copied(),
            kind: text("kind"),
            mode: text("mode"),
        };
        Self::Change {
            scope: text("scope").unwrap_or_default(),
            change: Box::new(change),
            run: action::Run::new(flags),
        }
    }

    pub(super) async fn run(self, config: &OutboxConfig) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        match self {
            Self::List { limit, json } => {
                let operator = Operator::connect(config, Stamp::default(), &mut tasks).await?;
                let mut scopes = operator.scopes("", limit.saturating_add(1)).await?;
                list::cut(&mut scopes, limit as usize);
                output::print(&output::listed(json, &scopes, HEADS, cells)?)?;
            }
            Self::Change { scope, change, run } => {
                let mut operator = Operator::connect(config, run.stamp.clone(), &mut tasks).await?;
                let changed = operator.change_scope(&scope, &change, run.dry_run).await?;
                let (before, after) = changed.ok_or_else(|| {
                    anyhow!(
                        "no scope {scope:?} is registered; nothing was done; see `oncebox inbox scope list`"
                    )
                })?;
                let text = if run.json {
                    let action = "change-scope";
                    let document =
                        json!({ "action": action, "before": before, "after": after, "dry_run": run.dry_run });
                    output::json_lines(&[document])?
                } else {
                    let verb = if run.dry_run { "would change" } else { "changed" };
                    let (before, after) = (settings(&before), settings(&after));
                    output::clean(&format!("{verb} {scope}\n  from {before}\n  to   {after}\n"))
                };
                output::print(&text)?;
            }
        }
        Ok(())
    }
}

fn kept(seconds: Option<f64>) -> String {
    const DAY: f64 = 86_400.0;
    match seconds {
        None => "for ever".to_owned(),
        Some(seconds) if seconds % DAY == 0.0 => counted(seconds / DAY, "day"),
        Some(seconds) => {
            humantime::format_duration(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
                .to_string()
        }
    }
}

fn settings(scope: &ScopeSettings) -> String {
    let ScopeSettings { kind, mode, retention_seconds, dead_letter_seconds, .. } = scope;
    let mode = mode.as_deref().unwrap_or("not claimed yet");
    let (keys, letters) = (kept(*retention_seconds), kept(*dead_letter_seconds));
    format!("{kind} ({mode}): keys {keys}, dead letters {letters}")
}

const HEADS: [&str; 6] = ["SCOPE", "KIND", "MODE", "KEYS", "DEAD LETTERS", "SET"];
fn cells(scope: &ScopeSettings) -> [String; 6] {
    [
        scope.scope.clone(),
        scope.kind.clone(),
        scope.mode.clone().unwrap_or_default(),
        kept(scope.retention_seconds),
        kept(scope.dead_letter_seconds),
        output::time(scope.registered_at),
    ]
}
