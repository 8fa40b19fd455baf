//! `oncebox outbox pause`, `throttle`, `resume` and `pauses`.

use std::time::{Duration, SystemTime};

use anyhow::ensure;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command};
use oncebox_connect::config::{Config, ConfigError, OutboxConfig};
use oncebox_operator::{Ends, Kind, Moment, Operator, PauseOf, PauseRow, Selection, Stamp, Verb, pause_time};
use serde_json::json;
use tokio::task::JoinSet;

use super::{
    action,
    output::{self, time},
};

const SELECTORS: [&str; 4] = ["all", "subject", "stream", "ordering-key"];

/// The arguments of the command.
pub(crate) enum Pauses {
    List { json: bool },
    Pause { of: PauseOf, rate: Option<f64>, ends: Ends, is_unseen: bool, run: action::Run },
    Resume { of: PauseOf, run: action::Run },
}

pub(super) fn commands(connection: impl Fn() -> Vec<Arg>, both: impl Fn() -> Vec<Arg>) -> [Command; 4] {
    let rate = Arg::new("rate")
        .long("rate")
        .value_name("N")
        .required(true)
        .value_parser(action::messages_a_second)
        .help("Messages a second; less than 1 is possible: 0.1 is one in ten seconds");
    let unseen = Arg::new("unseen").long("unseen").action(ArgAction::SetTrue);
    let unseen = unseen.help("Also if no recent message has such a subject");
    let command = |verb: Verb| Command::new(verb.word()).about(verb.about);
    let [pause, throttle, resume] = [Verb::Pause, Verb::Throttle, Verb::Resume].map(command);
    let list = Command::new("pauses").about("List what is paused or throttled").arg(action::json());
    let changes = |command: Command| {
        let group = ArgGroup::new("selection").args(SELECTORS).required(true);
        let run = action::who();
        command.args(selection()).group(group).args(run)
    };
    [
        changes(pause).args(ends()).arg(unseen.clone()).args(both()),
        changes(throttle).arg(rate).args(ends()).arg(unseen).args(both()),
        changes(resume).args(connection()),
        list.args(connection()),
    ]
}

fn selection() -> Vec<Arg> {
    let all = Arg::new("all").long("all").action(ArgAction::SetTrue).help("All messages of the outbox");
    [vec![all], action::selectors(Kind::Pauses, Kind::Pauses.selectors())].concat()
}

/// A moment that is given as a time.
fn instant(text: &str) -> Result<SystemTime, String> {
    match text.parse()? {
        Moment::At(time) => Ok(time),
        Moment::Ago(_) => {
            Err("it is no time in UTC, such as 2030-01-31T08:00:00Z; how long, --for takes".to_owned())
        }
    }
}

fn ends() -> [Arg; 2] {
    let after = Arg::new("for").long("for").value_name("TIME").value_parser(pause_time);
    let at = Arg::new("until").long("until").value_name("TIME").value_parser(instant);
    [
        after.help("End by itself after this time: 90s, 15m, 2h"),
        at.conflicts_with("for").help("End by itself then: in UTC, 2030-01-31 or 2030-01-31T08:00:00Z"),
    ]
}

impl Pauses {
    pub(super) fn new(name: &str, flags: &ArgMatches) -> Result<Self, ConfigError> {
        if name == "pauses" {
            return Ok(Self::List { json: flags.get_flag("json") });
        }
        let mut selection = Selection::of(Kind::Pauses);
        for (name, value) in action::fields(Kind::Pauses.selectors(), flags) {
            let set = selection.set(&name, &value);
            set.map_err(|problem| ConfigError(vec![format!("--{name}: {problem}")]))?;
        }
        let (of, run) = (PauseOf::of(&selection), action::Run::new(flags));
        if name == "resume" {
            return Ok(Self::Resume { of, run });
        }
        let after = flags.get_one::<Duration>("for").copied().map(Ends::After);
        let at = flags.get_one::<SystemTime>("until").copied().map(Ends::At);
        let rate = flags.try_get_one::<f64>("rate").ok().flatten().copied();
        let is_unseen = flags.get_flag("unseen");
        Ok(Self::Pause { of, rate, ends: after.or(at).unwrap_or(Ends::Never), is_unseen, run })
    }

    /// Whether the command needs NATS.
    pub(super) fn names_stream(flags: &ArgMatches) -> bool {
        flags.contains_id("stream")
    }

    pub(super) async fn run(self, config: &OutboxConfig, nats: Option<&Config>) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        match self {
            Self::List { json } => {
                let operator = Operator::connect(config, Stamp::default(), &mut tasks).await?;
                let pauses = operator.pauses().await?;
                output::print(&output::listed(json, &pauses, HEADS, cells)?)?;
            }
            Self::Pause { of, rate, ends, is_unseen, run } => {
                let mut operator = Operator::connect(config, run.stamp.clone(), &mut tasks).await?;
                let warnings = operator.pause_warnings(&of).await?;
                let ends_at = operator.pause(&of, rate, ends, is_unseen, nats).await?;
                let action = if rate.is_some() { "throttled" } else { "paused" };
                warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
                report(&run, action, &of, ends_at)?;
            }
            Self::Resume { of, run } => {
                let mut operator = Operator::connect(config, run.stamp.clone(), &mut tasks).await?;
                ensure!(
                    operator.resume(&of).await?,
                    "{of} is not paused; nothing was done. See `oncebox outbox pauses`"
                );
                report(&run, "resumed", &of, None)?;
            }
        }
        Ok(())
    }
}

fn report(run: &action::Run, action: &str, of: &PauseOf, ends_at: Option<SystemTime>) -> anyhow::Result<()> {
    let until = ends_at.map(time);
    let text = if run.json {
        output::json_lines(&[json!({ "action": action, "of": of.to_string(), "until": until })])?
    } else {
        format!("{action} {of}{}\n", until.map(|at| format!(" until {at}")).unwrap_or_default())
    };
    output::print(&text)?;
    Ok(())
}

const HEADS: [&str; 7] = ["KIND", "VALUE", "MESSAGES/S", "SINCE", "UNTIL", "BY", "NOTE"];
fn cells(pause: &PauseRow) -> [String; 7] {
    [
        pause.kind.clone(),
        pause.value.clone(),
        pause.rate.map_or_else(|| "none".to_owned(), |rate| rate.to_string()),
        time(pause.paused_at),
        pause.ends_at.map(time).unwrap_or_default(),
        pause.paused_by.clone().unwrap_or_else(|| pause.database_user.clone()),
        pause.reason.clone().unwrap_or_default(),
    ]
}
