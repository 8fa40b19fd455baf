//! `oncebox canary list | stop | continue`, and the options that begin one.

use std::time::Duration;

use anyhow::ensure;
use oncebox_connect::words::counted;
use oncebox_operator::{CANARY_WITHIN, Canary as Listed, Operator, Verb};
use serde_json::json;

use super::{
    On, Run, action,
    output::{self, time},
};

/// The longest time for a verdict.
const WITHIN_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Look at retries in steps of 1, 10, 100 and the rest; stop or continue them
#[derive(clap::Subcommand)]
pub(crate) enum Canary {
    /// List canaries, the newest first; those that ended are kept for a week
    List {
        /// Canaries at most; 1 to 1000
        #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(i64).range(1..=1_000))]
        limit: i64,
        /// Print JSON, a document per line
        #[arg(long)]
        json: bool,
    },
    #[command(about = Verb::StopCanary.about)]
    Stop(One),
    #[command(about = Verb::ContinueCanary.about)]
    Continue(One),
}

#[derive(clap::Args)]
pub(crate) struct One {
    /// The canary, from the list
    #[arg(value_name = "ID", value_parser = clap::value_parser!(i64).range(1..))]
    id: i64,
    #[command(flatten)]
    who: action::Who,
}

// The options of a retry that begin a canary instead.
#[derive(clap::Args)]
pub(super) struct Options {
    /// Leave it to the relays to retry one, then 10, 100 and the rest, and to stop at the first
    /// that fails again
    #[arg(long, conflicts_with = "rate")]
    canary: bool,
    /// How long a retried one may be neither handled nor dead again before the canary stops
    /// [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = within, requires = "canary")]
    within: Option<Duration>,
}

fn within(text: &str) -> Result<Duration, String> {
    let parsed = humantime::parse_duration(text).ok();
    let parsed = parsed.filter(|time| *time >= Duration::from_secs(1) && *time <= WITHIN_MAX);
    parsed.ok_or_else(|| "it is not a time of a second to a day, such as 90s, 15m or 2h".to_owned())
}

impl Options {
    /// The time for a verdict, where a canary is wanted.
    pub(super) fn wanted(&self) -> Option<Duration> {
        self.canary.then_some(self.within.unwrap_or(CANARY_WITHIN))
    }
}

/// Says which canary was begun.
pub(super) async fn begun(operator: &mut Operator, id: Option<i64>, json: bool) -> anyhow::Result<u8> {
    let text = match (json, id) {
        (true, _) => output::json_lines(&[json!({ "action": "canary", "canary": id, "dry_run": false })])?,
        (false, Some(id)) => format!(
            "canary {id} retries them: one first, then 10, 100 and the rest; see `oncebox canary list`\n"
        ),
        (false, None) => "nothing matches, and no canary was begun\n".to_owned(),
    };
    output::print(&text)?;
    if id.is_some() && operator.status().await?.lacks_relay() {
        tracing::warn!(
            "no relay is connected to this database: the canary waits for one, which takes its steps"
        );
    }
    Ok(0)
}

impl Run for Canary {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        let text = match self {
            Self::List { limit, json } => {
                output::listed(json, &on.operator().await?.canaries(limit).await?, HEADS, cells)?
            }
            Self::Stop(One { id, who }) => {
                let is_stopped = on.acting(&who).await?.stop_canary(id).await?;
                ensure!(
                    is_stopped,
                    "no canary {id} is running, or has stopped by itself; see `oncebox canary list`"
                );
                acted(&who, "stop", "stopped", id)?
            }
            Self::Continue(One { id, who }) => {
                let goes_on = on.acting(&who).await?.continue_canary(id).await?;
                ensure!(goes_on, "no canary {id} has stopped with a rest; see `oncebox canary list`");
                acted(&who, "continue", "continued", id)?
            }
        };
        output::end(&text)
    }
}

fn acted(who: &action::Who, action: &str, past: &str, id: i64) -> anyhow::Result<String> {
    Ok(match who.json {
        true => output::json_lines(&[json!({ "action": action, "canary": id })])?,
        false => format!("{past} canary {id}\n"),
    })
}

const HEADS: [&str; 11] =
    ["ID", "STATE", "OF", "WAITING", "WATCHED", "GOOD", "FAILED", "SKIPPED", "BY", "BEGAN", "REASON"];

fn cells(canary: &Listed) -> [String; 11] {
    let by = canary.operator.as_ref().unwrap_or(&canary.database_user);
    let of = counted(canary.selected, canary.things().trim_end_matches('s'));
    let numbers = [canary.waiting, canary.watched, canary.good, canary.failed, canary.skipped];
    let [waiting, watched, good, failed, skipped] = numbers.map(|number| number.to_string());
    let why = canary.reason.as_ref().or(canary.fault.as_ref()).cloned().unwrap_or_default();
    let (state, began) = (canary.state.clone(), time(canary.began_at));
    [canary.id.to_string(), state, of, waiting, watched, good, failed, skipped, by.clone(), began, why]
}
