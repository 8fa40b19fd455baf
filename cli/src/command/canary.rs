//! `oncebox canary list | stop | continue`, and the options that begin one.

use std::time::Duration;

use anyhow::ensure;
use clap::{Arg, ArgAction, ArgMatches, Command};
use oncebox_connect::{config::OutboxConfig, words::counted};
use oncebox_operator::{CANARY_WITHIN, Canary as Listed, Operator, Stamp, Verb};
use serde_json::json;
use tokio::task::JoinSet;

use super::{
    action,
    output::{self, time},
};

const WITHIN_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The arguments of the command.
pub(crate) enum Canary {
    List { limit: i64, json: bool },
    Stop { id: i64, run: action::Run },
    Continue { id: i64, run: action::Run },
}

/// The options of a retry that begin a canary instead.
pub(super) fn options() -> [Arg; 2] {
    let canary = Arg::new("canary").long("canary").action(ArgAction::SetTrue).conflicts_with("rate");
    let within = Arg::new("within").long("within").value_name("TIME").value_parser(within).requires("canary");
    [
        canary.help(
            "Leave it to the relays to retry one, then 10, 100 and the rest, and to stop at the first that fails again",
        ),
        within.help("How long a retried one may be neither handled nor dead again before the canary stops [default: 10m]"),
    ]
}

fn within(text: &str) -> Result<Duration, String> {
    let parsed = humantime::parse_duration(text).ok();
    let parsed = parsed.filter(|time| *time >= Duration::from_secs(1) && *time <= WITHIN_MAX);
    parsed.ok_or_else(|| "it is not a time of a second to a day, such as 90s, 15m or 2h".to_owned())
}

/// The time for a verdict, where the options ask for a canary.
pub(super) fn wanted(flags: &ArgMatches) -> Option<Duration> {
    let is_wanted = flags.try_get_one("canary").ok().flatten() == Some(&true);
    let within = flags.try_get_one("within").ok().flatten().copied().unwrap_or(CANARY_WITHIN);
    is_wanted.then_some(within)
}

/// Says which canary was begun.
pub(super) async fn begun(operator: &mut Operator, id: Option<i64>, json: bool) -> anyhow::Result<()> {
    let text = match (json, id) {
        (true, _) => output::json_lines(&[json!({ "action": "canary", "canary": id, "dry_run": false })])?,
        (false, Some(id)) => format!(
            "canary {id} retries them: one first, then 10, 100 and the rest; see `oncebox canary list`\n"
        ),
        (false, None) => "nothing matches, and no canary was begun\n".to_owned(),
    };
    output::print(&text)?;
    if id.is_none() {
        return Ok(());
    }
    let status = operator.status().await?;
    if status.lacks_relay() {
        tracing::warn!(
            "no relay is connected to this database: the canary waits for one, which takes its steps"
        );
    }
    Ok(())
}

pub(super) fn command(connection: impl Fn() -> Vec<Arg>) -> Command {
    let acting = |verb: Verb| {
        let id =
            Arg::new("id").value_name("ID").required(true).value_parser(clap::value_parser!(i64).range(1..));
        Command::new(verb.word())
            .about(verb.about)
            .arg(id.help("The canary, from the list"))
            .args(action::who())
            .args(connection())
    };
    let limit = Arg::new("limit").long("limit").value_name("N").default_value("100");
    let limit =
        limit.value_parser(clap::value_parser!(i64).range(1..=1_000)).help("Canaries at most; 1 to 1000");
    Command::new("canary")
        .about("Look at retries in steps of 1, 10, 100 and the rest; stop or continue them")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("list")
                .about("List canaries, the newest first; those that ended are kept for a week")
                .arg(limit)
                .arg(action::json())
                .args(connection()),
        )
        .subcommand(acting(Verb::StopCanary))
        .subcommand(acting(Verb::ContinueCanary))
}

impl Canary {
    pub(super) fn new(name: &str, flags: &ArgMatches) -> Self {
        let id = || flags.get_one::<i64>("id").copied().unwrap_or_default();
        match name {
            "stop" => Self::Stop { id: id(), run: action::Run::new(flags) },
            "continue" => Self::Continue { id: id(), run: action::Run::new(flags) },
            _ => {
                let limit = flags.get_one::<i64>("limit").copied().unwrap_or(100);
                Self::List { limit, json: flags.get_flag("json") }
            }
        }
    }

    pub(super) async fn run(self, config: &OutboxConfig) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        let text = match self {
            Self::List { limit, json } => {
                let operator = Operator::connect(config, Stamp::default(), &mut tasks).await?;
                let canaries = operator.canaries(limit).await?;
                output::listed(json, &canaries, HEADS, cells)?
            }
            Self::Stop { id, run } => {
                let mut operator = Operator::connect(config, run.stamp.clone(), &mut tasks).await?;
                let is_stopped = operator.stop_canary(id).await?;
                ensure!(
                    is_stopped,
                    "no canary {id} is running, or has stopped by itself; see `oncebox canary list`"
                );
                acted(&run, "stop", "stopped", id)?
            }
            Self::Continue { id, run } => {
                let mut operator = Operator::connect(config, run.stamp.clone(), &mut tasks).await?;
                let goes_on = operator.continue_canary(id).await?;
                ensure!(goes_on, "no canary {id} has stopped with a rest; see `oncebox canary list`");
                acted(&run, "continue", "continued", id)?
            }
        };
        output::print(&text)?;
        Ok(())
    }
}

fn acted(run: &action::Run, action: &str, past: &str, id: i64) -> anyhow::Result<String> {
    Ok(match run.json {
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
