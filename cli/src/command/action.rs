//! The options that the commands which change something share.

use std::{
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

use anyhow::anyhow;
use clap::{Arg, ArgAction, ArgMatches};
use oncebox_connect::{
    error::RelayError,
    words::{counted, for_one},
};
use oncebox_operator::{Field, Kind, Operator, Progress, RowSet, SAGA_STATES, Selection, Shown, Stamp, Verb};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{On, enqueue, output};

// Who acts, and how it is told.
#[derive(Clone, clap::Args)]
pub(crate) struct Who {
    /// Who acts, for the audit table, beside the database's user
    #[arg(long, value_name = "NAME", value_parser = name)]
    by: Option<String>,
    /// Why, for the audit table
    #[arg(long, value_name = "TEXT", value_parser = bounded(1000))]
    note: Option<String>,
    /// Print JSON, a document per line
    #[arg(long)]
    pub(super) json: bool,
}

// How to change all or nothing.
#[derive(clap::Args)]
pub(crate) struct Run {
    /// Only count; change nothing
    #[arg(id = "dry-run", long)]
    pub(super) dry_run: bool,
    #[command(flatten)]
    pub(super) who: Who,
    #[arg(skip)]
    pub(super) confirm: Option<Shown>,
    /// A row in the audit by which the command can be undone.
    #[arg(skip)]
    pub(super) undo: Option<i64>,
    /// More about the number: a line, and members of a document.
    #[arg(skip)]
    pub(super) more: Option<Box<(String, Value)>>,
}

// How many things to change, of many.
#[derive(clap::Args)]
pub(super) struct Limit {
    /// Stop after so many messages
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) limit: Option<u64>,
}

// The rows of a dry run.
#[derive(clap::Args)]
pub(super) struct Confirm {
    #[arg(long, value_name = "TOKEN", help = CONFIRM, conflicts_with = "dry-run")]
    pub(super) confirm: Option<Shown>,
}

pub(super) const CONFIRM: &str = "Act on the rows that a dry run showed, and no other: the token that it printed; refused when \
    they have changed";

// The pace of a command that has messages sent again.
#[derive(clap::Args)]
pub(super) struct Rate {
    /// Limit of messages a second; a command that is cut off can be run again for the rest
    #[arg(long, value_name = "N", value_parser = messages_a_second)]
    pub(super) rate: Option<f64>,
}

/// A number of messages a second.
pub(super) fn messages_a_second(text: &str) -> Result<f64, String> {
    let parsed = text.parse().ok().filter(|rate| (0.001..=1e6).contains(rate));
    parsed.ok_or_else(|| "it is not a number of messages a second, 0.001 to 1000000".to_owned())
}

/// The help of an option that takes a moment, with the forms that are read.
pub(super) fn with_forms(help: &str) -> String {
    format!("{help}: in UTC, 2030-01-31 or 2030-01-31T08:00:00Z, or how long ago, 24h")
}

/// The options of fields of the catalogue, on a kind of things.
pub(super) fn selectors(kind: Kind, fields: &'static [Field]) -> Vec<Arg> {
    fields.iter().map(|field| selector(kind, field)).collect()
}

fn selector(kind: Kind, field: &'static Field) -> Arg {
    let arg = Arg::new(field.name).long(field.name);
    let check = move |text: &str| Selection::of(kind).set(field.name, text).map(|()| text.to_owned());
    let (arg, help) = (arg.value_name(field.value), field.help(kind.things()));
    match (field.name, field.value) {
        (_, "") => arg.action(ArgAction::SetTrue).help(help),
        ("header", _) => {
            let pair = |text: &str| enqueue::pair(text).map(|_| text.to_owned());
            arg.value_parser(pair).action(ArgAction::Append).help(help)
        }
        ("remove-header", _) => arg.action(ArgAction::Append).help(help),
        (_, "TIME") => arg.value_parser(check).help(with_forms(&help)),
        ("state", _) => arg.value_parser(SAGA_STATES).help(help),
        _ => arg.value_parser(check).help(help),
    }
}

/// The names and values of those that were given.
pub(super) fn fields(fields: &[Field], flags: &ArgMatches) -> Vec<(String, String)> {
    let given = |field: &Field| {
        let is_set = || flags.try_get_one::<bool>(field.name).ok().flatten() == Some(&true);
        let values: Vec<String> = match field.value {
            "" => is_set().then(|| "1".to_owned()).into_iter().collect(),
            _ => flags.try_get_many(field.name).ok().flatten().into_iter().flatten().cloned().collect(),
        };
        let name = field.name.to_owned();
        values.into_iter().map(move |value| (name.clone(), value))
    };
    fields.iter().flat_map(given).collect()
}

/// A text of at most this number of bytes.
pub(super) fn bounded(most: usize) -> impl Fn(&str) -> Result<String, String> + Clone {
    move |text: &str| match text.len() {
        length if (1..=most).contains(&length) => Ok(text.to_owned()),
        length => Err(format!("{length} bytes; the limit is 1 to {most} bytes")),
    }
}

/// A name for the audit and its lists, each row of which is a line.
fn name(text: &str) -> Result<String, String> {
    match text.chars().any(char::is_control) {
        true => Err("a line break, or another control character, is in it".to_owned()),
        false => bounded(255)(text),
    }
}

impl Who {
    pub(super) fn stamp(&self) -> Stamp {
        Stamp { operator: self.by.clone(), note: self.note.clone() }
    }
}

impl Run {
    /// Connects for a command that acts on many messages. On a terminal it says how far it is.
    pub(super) async fn connect(&self, on: &On, rate: Option<f64>) -> Result<Operator, RelayError> {
        let progress = (!self.dry_run && io::stderr().is_terminal()).then(progress);
        Ok(on.acting(&self.who).await?.at_rate(rate, progress))
    }

    /// Whether it shows rows, or acts on those that were shown.
    pub(super) fn has_rows(&self) -> bool {
        self.dry_run || self.confirm.is_some()
    }

    /// An empty set of rows, for a dry run and for a confirmed one.
    pub(super) async fn rows(
        &self,
        operator: &Operator,
        command: &'static str,
    ) -> Result<Option<RowSet>, RelayError> {
        match self.has_rows() {
            true => RowSet::new(operator, command, self.confirm.as_ref()).await.map(Some),
            false => Ok(None),
        }
    }

    /// Refuses rows that are not those that were confirmed, and tells of later ones.
    pub(super) fn check(&self, rows: &RowSet) -> anyhow::Result<()> {
        if let Some(confirmed) = &self.confirm {
            rows.check(confirmed)?;
            if rows.late() > 0 {
                let (late, stay) = (rows.late(), for_one(rows.late(), "stays", "stay"));
                tracing::warn!("{} came since the dry run, and {stay}", counted(late, "row"));
            }
        }
        Ok(())
    }

    /// The token of the rows that a dry run has shown, if there are some.
    pub(super) fn token(&self, rows: Option<&RowSet>) -> Option<String> {
        rows.filter(|rows| self.dry_run && rows.count() > 0).map(|rows| rows.shown().to_string())
    }

    /// Says how many things were changed, or would be, the latter with the token that confirms
    /// them.
    pub(super) fn report(&self, verb: Verb, count: u64, rows: Option<&RowSet>) -> anyhow::Result<u8> {
        let things = match verb.kind {
            Kind::Sagas => ["saga", "sagas"],
            Kind::Replays => ["replay", "messages"],
            _ => ["message", "messages"],
        };
        self.report_of(things, [verb.word(), verb.past], count, rows)
    }

    /// The same; the words are a thing, and its name in JSON, and the action before and after.
    pub(super) fn report_of(
        &self,
        [thing, name]: [&str; 2],
        [action, past]: [&str; 2],
        count: u64,
        rows: Option<&RowSet>,
    ) -> anyhow::Result<u8> {
        let token = self.token(rows);
        let text = if self.who.json {
            let mut document = json!({ "action": action, name: count, "dry_run": self.dry_run });
            if let Some(token) = token {
                document["confirm"] = token.into();
            }
            if let Some(undo) = self.undo {
                document["undo"] = undo.into();
            }
            if let Some((_, Value::Object(more))) = self.more.as_deref() {
                more.iter().for_each(|(name, value)| document[name] = value.clone());
            }
            output::json_lines(&[document])?
        } else {
            let verb = if self.dry_run { format!("would {action}") } else { past.to_owned() };
            let confirm = token.zip(rows).map(|(token, rows)| confirmation(action, &token, rows));
            let confirm = confirm.unwrap_or_default();
            let undo = self.undo.map(|id| format!("to bring them back within a day: oncebox undo {id}\n"));
            let more = self.more.as_deref().map(|(line, _)| format!("{line}\n")).unwrap_or_default();
            format!("{verb} {}\n{more}{confirm}{}", counted(count, thing), undo.unwrap_or_default())
        };
        output::end(&text)
    }
}

/// How to confirm the rows of a dry run: a part of the answer, and no line of the log, which a
/// filter may hide.
pub(super) fn confirmation(action: &str, token: &str, rows: &RowSet) -> String {
    let these = if rows.late() == 0 { String::new() } else { format!("{} of ", rows.count()) };
    format!("to {action} {these}these rows and no other: --confirm {token}\n")
}

/// One line that is written over about once a second.
fn progress() -> Progress {
    let (begun, mut said) = (Instant::now(), Instant::now());
    Box::new(move |done| {
        if said.elapsed() < Duration::from_secs(1) {
            return;
        }
        said = Instant::now();
        #[expect(clippy::cast_precision_loss, reason = "for a person")]
        let rate = done as f64 / begun.elapsed().as_secs_f64();
        drop(write!(io::stderr(), "\r{}, {rate:.0} a second  ", output::messages(done)));
    })
}

/// The error of a command that found none of a kind; where a key was given, it says how that one
/// stands.
pub(super) async fn nothing(operator: &mut Operator, kind: Kind, key: Option<&str>) -> anyhow::Error {
    let sought = kind.thing();
    let name = key.unwrap_or_default();
    match operator.edited_key(name).await {
        Ok(Some(edited)) => {
            return anyhow!(
                "no {sought} is selected: the message with the key {name:?} was edited, and its key is {edited:?} now; \
                 see `oncebox trace {name}`"
            );
        }
        Ok(None) => {}
        Err(error) => return error.into(),
    }
    match (kind, key) {
        (Kind::Letters, _) => {
            return anyhow!(
                "no dead letter is selected; see `oncebox inbox dead list`, and with --no-key those of messages \
                 without a valid key: --id names one"
            );
        }
        (Kind::Failing, _) => {
            return anyhow!("no failing message is selected; see `oncebox inbox failing list`");
        }
        (Kind::Sagas, _) => {
            return anyhow!("no saga is selected; finished ones are where --state or --key names them");
        }
        (_, None) => return anyhow!("no {sought} is selected; nothing was done"),
        _ => {}
    }
    let key = key.unwrap_or_default();
    let trace = match operator.trace(key, 1).await {
        Ok(trace) => trace,
        Err(error) => return error.into(),
    };
    let Some(message) = trace.messages.iter().find(|message| message.key == key) else {
        return anyhow!("no {sought} is selected: no message has the key {key:?}");
    };
    let replay =
        message.replay.as_ref().map(|replay| format!(", its replay {} is {}", replay.number, replay.state));
    let (state, replay) = (message.state, replay.unwrap_or_default());
    anyhow!(
        "no {sought} is selected: the message with the key {key:?} is {state}{replay}; see `oncebox trace {key}`"
    )
}
