//! `oncebox outbox pause`, `throttle`, `resume` and `pauses`.

use std::time::{Duration, SystemTime};

use anyhow::ensure;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command};
use oncebox_connect::config::{Config, OutboxConfig};
use oncebox_operator::{Ends, Moment, Operator, PauseOf, PauseRow, Stamp, SubjectPattern};
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
    let pause =
        Command::new("pause").about("Send no messages of a subject, stream or ordering key for a while");
    let throttle = Command::new("throttle").about("Send so many messages a second of a subject or stream");
    let resume = Command::new("resume").about("End a pause or a throttle");
    let list = Command::new("pauses").about("List what is paused or throttled").arg(action::json());
    let changes = |command: Command| {
        let group = ArgGroup::new("selection").args(SELECTORS).required(true);
        let run =
            action::run().into_iter().filter(|arg| !["limit", "dry-run"].contains(&arg.get_id().as_str()));
        command.args(selection()).group(group).args(run)
    };
    [
        changes(pause).args(ends()).arg(unseen.clone()).args(both()),
        changes(throttle).arg(rate).args(ends()).arg(unseen).args(both()),
        changes(resume).args(connection()),
        list.args(connection()),
    ]
}

fn selection() -> [Arg; 4] {
    let text = |name, value, help| Arg::new(name).long(name).value_name(value).help(help);
    let subject =
        text("subject", "PATTERN", "Messages with this subject; * is one token, a last > one or more");
    let stream = "Messages with the subjects that this stream has now; hub.NAME is one of the domain hub";
    [
        Arg::new("all").long("all").action(ArgAction::SetTrue).help("All messages of the outbox"),
        subject.value_parser(clap::value_parser!(SubjectPattern)),
        text("stream", "NAME", stream).value_parser(action::bounded(255)),
        text("ordering-key", "KEY", "Messages with this ordering key").value_parser(action::bounded(1000)),
    ]
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
    let after = Arg::new("for").long("for").value_name("TIME").value_parser(duration);
    let at = Arg::new("until").long("until").value_name("TIME").value_parser(instant);
    [
        after.help("End by itself after this time: 90s, 15m, 2h"),
        at.conflicts_with("for").help("End by itself then: in UTC, 2030-01-31 or 2030-01-31T08:00:00Z"),
    ]
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let most = Duration::from_secs(366 * 24 * 60 * 60);
    let parsed = humantime::parse_duration(text).ok();
    let parsed = parsed.filter(|time| *time >= Duration::from_secs(1) && *time <= most);
    parsed.ok_or_else(|| "it is not a time of a second to a year, such as 90s, 15m or 2h".to_owned())
}

impl Pauses {
    pub(super) fn new(name: &str, flags: &ArgMatches) -> Self {
        if name == "pauses" {
            return Self::List { json: flags.get_flag("json") };
        }
        let text = |name| flags.get_one::<String>(name).cloned();
        let subject = || flags.get_one::<SubjectPattern>("subject").cloned().map(PauseOf::Subject);
        let of = subject().or_else(|| text("stream").map(PauseOf::Stream));
        let of = of.or_else(|| text("ordering-key").map(PauseOf::OrderingKey)).unwrap_or(PauseOf::All);
        let run = action::Run {
            stamp: Stamp { operator: text("by"), note: text("note") },
            dry_run: false,
            json: flags.get_flag("json"),
            rate: None,
            confirm: None,
            canary: None,
            undo: None,
        };
        if name == "resume" {
            return Self::Resume { of, run };
        }
        let after = flags.get_one::<Duration>("for").copied().map(Ends::After);
        let at = flags.get_one::<SystemTime>("until").copied().map(Ends::At);
        let rate = flags.try_get_one::<f64>("rate").ok().flatten().copied();
        let is_unseen = flags.get_flag("unseen");
        Self::Pause { of, rate, ends: after.or(at).unwrap_or(Ends::Never), is_unseen, run }
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
                output::print(&if json { output::json_lines(&pauses)? } else { table(&pauses) })?;
            }
            Self::Pause { of, rate, ends, is_unseen, run } => {
                let mut operator = Operator::connect(config, run.stamp.clone(), &mut tasks).await?;
                let earlier = operator.pauses().await?.into_iter().find(|pause| of.is(pause));
                let ends_at = operator.pause(&of, rate, ends, is_unseen, nats).await?;
                let action = if rate.is_some() { "throttled" } else { "paused" };
                if let Some(earlier) = earlier {
                    let by = earlier.paused_by.unwrap_or(earlier.database_user);
                    let what = if earlier.rate.is_some() { "throttle" } else { "pause" };
                    tracing::warn!("this takes the place of the {what} of {of} by {by}");
                }
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

fn table(pauses: &[PauseRow]) -> String {
    let row = |pause: &PauseRow| {
        [
            pause.kind.clone(),
            pause.value.clone(),
            pause.rate.map_or_else(|| "none".to_owned(), |rate| rate.to_string()),
            time(pause.paused_at),
            pause.ends_at.map(time).unwrap_or_default(),
            pause.paused_by.clone().unwrap_or_else(|| pause.database_user.clone()),
            pause.reason.clone().unwrap_or_default(),
        ]
    };
    let rows: Vec<[String; 7]> = pauses.iter().map(row).collect();
    output::table(["KIND", "VALUE", "MESSAGES/S", "SINCE", "UNTIL", "BY", "NOTE"], &rows)
}
