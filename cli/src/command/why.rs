//! `oncebox why KEY`.

use clap::{Arg, ArgMatches};
use oncebox_connect::{
    config::{ConfigError, OutboxConfig, Values},
    words::counted,
};
use oncebox_operator::{
    Explained, Looked, Outcome, Passed, PlacedTrace, Remedy, WhySource, explain, look_elsewhere,
};

use super::{
    action, databases,
    output::{self, time},
    trace::{self, Asked, Opened, Place},
};

/// The arguments of the command.
pub(crate) struct Why {
    key: String,
    steps_max: u32,
    /// Other databases that are looked into.
    also: Vec<OutboxConfig>,
    json: bool,
}

pub(super) fn command(connection: Vec<Arg>) -> clap::Command {
    let limit = Arg::new("limit")
        .long("limit")
        .value_name("N")
        .value_parser(clap::value_parser!(u32).range(1..=1_000))
        .default_value("100")
        .help("Messages below the key at most; 1 to 1000");
    clap::Command::new("why")
        .about("Show why a message is not there yet: the first thing that holds it, and the remedy")
        .long_about(
            "Follow a message, and those of the steps below its key, from the enqueuing transaction to the handlers, up to \
             the first thing that holds it, and name the remedy. Changes nothing. Without NATS_URL the streams are not \
             asked. Exit codes: 0 nothing holds it, 1 something does or no message has the key, 69 a server cannot be \
             reached.",
        )
        .arg(trace::key())
        .arg(limit)
        .arg(trace::also())
        .arg(action::json().help("Print one JSON document"))
        .args(connection)
}

impl Why {
    /// # Errors
    /// Another database is not one that can be connected to.
    pub(super) fn new(flags: &ArgMatches, values: &Values) -> Result<Self, ConfigError> {
        let (key, also) = trace::given(flags, values)?;
        let steps_max = flags.get_one::<u32>("limit").copied().unwrap_or(100);
        Ok(Self { key, steps_max, also, json: flags.get_flag("json") })
    }

    /// Returns the exit code.
    pub(super) async fn run(self, mut places: Vec<Place>) -> anyhow::Result<u8> {
        places.extend(self.also.iter().map(databases::lone));
        let Asked { mut opened, mut unasked, mut code, .. } =
            trace::ask(places, &self.key, self.steps_max, self.json).await?;
        let is_known = opened.iter().any(|one| one.placed.trace.is_known());
        let meant = if is_known { None } else { trace::meant(&mut opened, &self.key).await? };
        let mut asked: Vec<(_, PlacedTrace)> = Vec::new();
        let (mut places, mut all_tasks) = (Vec::new(), Vec::new());
        for Opened { operator, _tasks, placed, place } in opened {
            asked.push((operator, placed));
            places.push(place);
            all_tasks.push(_tasks);
        }
        let mut silent = look_elsewhere(&mut asked, databases::LOOK_MAX).await;
        let sources = places.iter().map(|place| WhySource {
            config: place.whole.as_deref(),
            is_named: place.is_named,
            status: None,
        });
        let sources: Vec<WhySource<'_>> = sources.collect();
        let is_partial = !(unasked.is_empty() && silent.is_empty());
        let looked = explain(&self.key, &mut asked, &sources, is_partial, databases::LOOK_MAX).await;
        let Looked { mut why, silent: more, is_nats_away, .. } = looked;
        silent.extend(more);
        for (database, error) in silent {
            let error = anyhow::Error::from(error);
            code = code.max(crate::exit_code(&error));
            unasked += &databases::unasked(&database, &error, self.json);
        }
        if let (Some(meant), Some(answer)) = (meant, why.answers.first_mut()) {
            answer.mean(&meant);
        }
        let text = if self.json { output::json_lines(&[&why])? } else { text(&why.answers, why.is_cut) };
        output::print(&(text + &unasked))?;
        code = code.max(if is_nats_away { crate::UNREACHABLE } else { 0 });
        Ok(code.max(if why.is_well() { 0 } else { crate::FAILED }))
    }
}

/// Messages that something holds come first.
fn text(answers: &[Explained], is_cut: bool) -> String {
    let is_well = |answer: &&Explained| matches!(answer.outcome, Outcome::Done | Outcome::OnItsWay);
    let (well, held): (Vec<&Explained>, Vec<&Explained>) = answers.iter().partition(is_well);
    let mut text = String::new();
    if answers.len() > 1 {
        let all = counted(answers.len(), "message");
        text += &format!("{all} with this key, or one below it; {} held\n\n", held.len());
    }
    let parts: Vec<String> = held.into_iter().chain(well).map(one).collect();
    text += &parts.join("\n");
    if is_cut {
        text += "\nthere are more below this key; see them with a higher --limit\n";
    }
    output::clean(&text)
}

fn one(answer: &Explained) -> String {
    let Explained { key, database, outcome, passed, station, what, remedy, .. } = answer;
    let place = database.as_ref().map(|database| format!(" in {database}")).unwrap_or_default();
    let state = match outcome {
        Outcome::Done => "is there".to_owned(),
        Outcome::OnItsWay => format!("is on its way: {station}"),
        Outcome::Held => format!("is held: {station}"),
        Outcome::GivenUp => "was given up".to_owned(),
        _ => "is not known".to_owned(),
    };
    let mut text = format!("{key}{place} {state}\n");
    for Passed { station, what, at, .. } in passed {
        let at = at.map(|at| format!(" at {}", time(at))).unwrap_or_default();
        text += &format!("  passed  {station}: {what}{at}\n");
    }
    let word = match outcome {
        Outcome::Done => "done",
        Outcome::OnItsWay => "now",
        _ => "here",
    };
    text += &format!("  {word:<6}  {station}: {what}\n");
    if let Some(Remedy { what, command, is_sql, .. }) = remedy {
        text += &format!("  remedy  {what}\n");
        let prompt = if *is_sql { "in PostgreSQL: " } else { "" };
        text += &command.as_ref().map(|command| format!("\n    {prompt}{command}\n")).unwrap_or_default();
    }
    text
}
