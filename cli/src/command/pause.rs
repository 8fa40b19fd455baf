//! `oncebox outbox pause`, `throttle`, `resume` and `pauses`.

use std::time::{Duration, SystemTime};

use anyhow::ensure;
use clap::{ArgMatches, Args as _, Command};
use oncebox_connect::config::ConfigError;
use oncebox_operator::{Ends, Kind, Moment, PauseOf, PauseRow, Selection, Verb, pause_time};
use serde_json::json;

use super::{
    On, Run, action, given,
    output::{self, time},
};

/// List what is paused or throttled
#[derive(clap::Args)]
pub(crate) struct List {
    /// Print JSON, a document per line
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct All {
    /// All messages of the outbox
    #[arg(long)]
    all: bool,
}

#[derive(clap::Args)]
struct Rate {
    /// Messages a second; less than 1 is possible: 0.1 is one in ten seconds
    #[arg(long, value_name = "N", value_parser = action::messages_a_second)]
    rate: f64,
}

#[derive(clap::Args)]
struct Lasts {
    /// End by itself after this time: 90s, 15m, 2h
    #[arg(long = "for", value_name = "TIME", value_parser = pause_time)]
    after: Option<Duration>,
    /// End by itself then: in UTC, 2030-01-31 or 2030-01-31T08:00:00Z
    #[arg(long, value_name = "TIME", value_parser = instant, conflicts_with = "after")]
    until: Option<SystemTime>,
    /// Also if no recent message has such a subject
    #[arg(long)]
    unseen: bool,
}

/// Messages that are held back, or go on.
pub(crate) struct Pause {
    of: PauseOf,
    who: action::Who,
    /// Neither, where it goes on.
    lasts: Option<(Lasts, Option<f64>)>,
}

pub(super) fn command(verb: Verb) -> Command {
    let selectors = action::selectors(Kind::Pauses, Kind::Pauses.selectors());
    let names: Vec<_> = selectors.iter().map(|selector| selector.get_id().clone()).collect();
    let group = clap::ArgGroup::new("selection").arg("all").args(names).required(true);
    let command = All::augment_args(Command::new(verb.word())).args(selectors).group(group);
    let command = action::Who::augment_args(command);
    let command = if verb == Verb::Throttle { Rate::augment_args(command) } else { command };
    let command = if verb == Verb::Resume { command } else { Lasts::augment_args(command) };
    command.about(verb.about)
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

impl Pause {
    pub(super) fn new(verb: Verb, flags: &ArgMatches) -> Result<Self, ConfigError> {
        let mut selection = Selection::of(Kind::Pauses);
        for (name, value) in action::fields(Kind::Pauses.selectors(), flags) {
            let set = selection.set(&name, &value);
            set.map_err(|problem| ConfigError(vec![format!("--{name}: {problem}")]))?;
        }
        let rate = (verb == Verb::Throttle).then(|| given::<Rate>(flags).rate);
        let lasts = (verb != Verb::Resume).then(|| (given(flags), rate));
        Ok(Self { of: PauseOf::of(&selection), who: given(flags), lasts })
    }

    /// Whether the command needs NATS.
    pub(super) fn names_stream(flags: &ArgMatches) -> bool {
        flags.contains_id("stream")
    }
}

impl Run for List {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        output::end(&output::listed(self.json, &on.operator().await?.pauses().await?, HEADS, cells)?)
    }
}

impl Run for Pause {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        let Self { of, who, lasts } = self;
        let mut operator = on.acting(&who).await?;
        let Some((Lasts { after, until, unseen }, rate)) = lasts else {
            ensure!(
                operator.resume(&of).await?,
                "{of} is not paused; nothing was done. See `oncebox outbox pauses`"
            );
            return report(&who, "resumed", &of, None);
        };
        let ends = after.map(Ends::After).or(until.map(Ends::At)).unwrap_or(Ends::Never);
        let warnings = operator.pause_warnings(&of).await?;
        let ends_at = operator.pause(&of, rate, ends, unseen, on.config.as_deref()).await?;
        warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        report(&who, if rate.is_some() { "throttled" } else { "paused" }, &of, ends_at)
    }
}

fn report(who: &action::Who, action: &str, of: &PauseOf, ends_at: Option<SystemTime>) -> anyhow::Result<u8> {
    let until = ends_at.map(time);
    output::end(&if who.json {
        output::json_lines(&[json!({ "action": action, "of": of.to_string(), "until": until })])?
    } else {
        format!("{action} {of}{}\n", until.map(|at| format!(" until {at}")).unwrap_or_default())
    })
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
