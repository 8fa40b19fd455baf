//! `oncebox why KEY`.

use oncebox_connect::words::counted;
use oncebox_operator::{Explained, Looked, Outcome, Passed, Remedy, WhySource, explain, look_elsewhere};
use oncebox_schema::Key;

use super::{
    databases,
    output::{self, time},
    trace::{self, Asked, Opened, Place},
};

/// Show why a message is not there yet: the first thing that holds it, and the remedy
#[derive(clap::Args)]
#[command(
    long_about = "Follow a message, and those of the steps below its key, from the enqueuing transaction to the handlers, up to \
    the first thing that holds it, and name the remedy. Changes nothing. Without NATS_URL the streams are not \
    asked. Exit codes: 0 nothing holds it, 1 something does or no message has the key, 69 a server cannot be \
    reached."
)]
pub(crate) struct Why {
    #[arg(value_name = "KEY", value_parser = trace::parse, help = trace::KEY)]
    key: Key,
    /// Messages below the key at most; 1 to 1000
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    #[arg(long, value_name = "URL", help = trace::ALSO)]
    pub(super) also: Vec<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl Why {
    /// Returns the exit code.
    pub(super) async fn run(self, places: Vec<Place>) -> anyhow::Result<u8> {
        let key = self.key.as_str();
        let Asked { mut opened, mut unasked, mut code, .. } =
            trace::ask(places, key, self.limit, self.json).await?;
        let is_known = opened.iter().any(|one| one.placed.trace.is_known());
        let meant = if is_known { None } else { trace::meant(&mut opened, key).await? };
        let parts = opened.into_iter().map(|Opened { operator, placed, place }| ((operator, placed), place));
        let (mut asked, places): (Vec<_>, Vec<Place>) = parts.unzip();
        let mut silent = look_elsewhere(&mut asked, databases::LOOK_MAX).await;
        let sources = places.iter().map(|place| WhySource {
            config: place.whole.as_deref(),
            is_named: place.is_named,
            status: None,
        });
        let sources: Vec<WhySource<'_>> = sources.collect();
        let is_partial = !(unasked.is_empty() && silent.is_empty());
        let looked = explain(key, &mut asked, &sources, is_partial, databases::LOOK_MAX).await;
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
