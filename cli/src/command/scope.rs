//! `oncebox inbox scope list | change`.

use std::time::Duration;

use anyhow::anyhow;
use oncebox_connect::words::counted;
use oncebox_operator::{Keeps, ScopeChange, ScopeSettings};
use serde_json::json;

use super::{On, Run, action, list, output};

/// Look at the settings of scopes, and change them
#[derive(clap::Subcommand)]
pub(crate) enum Scope {
    /// List scopes, and how long they keep keys and dead letters
    List {
        /// Scopes at most; 1 to 100000
        #[arg(long, value_name = "N", default_value = "1000", value_parser = list::limit())]
        limit: u32,
        /// Print JSON, a document per line
        #[arg(long)]
        json: bool,
    },
    /// Change settings of a scope; its processes go by them from their next start on
    // The usage that clap writes is too wide.
    #[command(override_usage = "oncebox inbox scope change <SCOPE> [OPTIONS]")]
    Change(Box<Change>),
}

#[derive(clap::Args)]
#[command(mut_arg("dry-run", |arg| arg.help("Only show the settings before and after; change nothing")))]
pub(crate) struct Change {
    /// The consumer or route: service:handler
    #[arg(value_name = "SCOPE")]
    scope: String,
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    run: action::Run,
}

#[derive(clap::Args)]
#[group(required = true, multiple = true)]
struct Settings {
    /// How long it keeps keys: a time such as 30d, or forever
    #[arg(long, value_name = "TIME", value_parser = keeps)]
    retention: Option<Keeps>,
    /// How long it keeps dead letters, and never shorter than keys
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    dead_letter_retention: Option<Duration>,
    /// Whose keys they are
    #[arg(long, value_name = "KIND", value_parser = ["consumer", "http"])]
    kind: Option<String>,
    /// How its processes claim keys; stop all of them first
    #[arg(long, value_name = "MODE", value_parser = ["transaction", "lease"])]
    mode: Option<String>,
}

fn keeps(text: &str) -> Result<Keeps, humantime::DurationError> {
    match text {
        "forever" => Ok(Keeps::Forever),
        text => humantime::parse_duration(text).map(Keeps::For),
    }
}

impl Run for Scope {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        match self {
            Self::List { limit, json } => {
                let mut scopes = on.operator().await?.scopes("", limit.saturating_add(1)).await?;
                list::cut(&mut scopes, limit as usize);
                output::end(&output::listed(json, &scopes, HEADS, cells)?)
            }
            Self::Change(change) => change.run(on).await,
        }
    }
}

impl Run for Change {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        let Self { scope, settings: Settings { retention, dead_letter_retention, kind, mode }, run } = self;
        let change = ScopeChange { retention, dead_letter_retention, kind, mode };
        let changed = on.acting(&run.who).await?.change_scope(&scope, &change, run.dry_run).await?;
        let (before, after) = changed.ok_or_else(|| {
            anyhow!("no scope {scope:?} is registered; nothing was done; see `oncebox inbox scope list`")
        })?;
        if run.who.json {
            let document =
                json!({ "action": "change-scope", "before": before, "after": after, "dry_run": run.dry_run });
            return output::end(&output::json_lines(&[document])?);
        }
        let verb = if run.dry_run { "would change" } else { "changed" };
        let (before, after) = (settings(&before), settings(&after));
        output::end(&output::clean(&format!("{verb} {scope}\n  from {before}\n  to   {after}\n")))
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
