//! `list` of the kinds that actions select from, each with its columns.

use std::fmt::Debug;

use clap::{ArgMatches, Args as _, Command, builder::RangedI64ValueParser};
use oncebox_connect::config::ConfigError;
use oncebox_operator::{
    DeadLetter, DelayedMessage, FailingMessage, FailingReason, Kind, ParkedMessage, Saga, Selection,
};
use serde::Serialize;

use super::{
    On, Run, action, given,
    output::{self, time},
};

/// Rows of a kind that are selected.
pub(crate) struct List {
    selection: Selection,
    by_reason: bool,
    how: How,
}

#[derive(clap::Args)]
struct ByReason {
    /// Count them by inbox and reason, the most frequent first
    #[arg(long)]
    by_reason: bool,
}

#[derive(clap::Args)]
struct How {
    #[arg(long, value_name = "N", default_value = "1000", value_parser = limit())]
    limit: u32,
    /// Print JSON, a document per line
    #[arg(long)]
    json: bool,
}

pub(super) fn command(kind: Kind) -> Command {
    let (about, most) = match kind {
        Kind::Dead => ("List dead messages in the order of their ids", "Messages"),
        Kind::Parked => ("List parked messages, and those that wait behind them", "Messages"),
        Kind::Replays => ("List replays that are still to be sent", "Messages"),
        Kind::Letters => ("List dead letters in the order of their ids", "Letters"),
        Kind::Failing => ("List failing messages, why, and when they are run again", "Messages, or reasons,"),
        Kind::Delayed => ("List delayed messages in the order of their times", "Messages"),
        _ => ("List sagas that have not finished, in the order of their beginning", "Sagas"),
    };
    let command = Command::new("list").args(action::selectors(kind, kind.selectors()));
    let command = if kind == Kind::Failing { ByReason::augment_args(command) } else { command };
    let help = format!("{most} at most; 1 to 100000");
    How::augment_args(command).mut_arg("limit", |limit| limit.help(help)).about(about)
}

/// How many rows a list has at most.
pub(super) fn limit() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=100_000)
}

/// Leaves out those beyond the limit, and says so.
pub(super) fn cut<T>(found: &mut Vec<T>, limit: usize) {
    if found.len() > limit {
        found.truncate(limit);
        tracing::warn!(limit, "there are more; see them with a higher --limit");
    }
}

impl List {
    pub(super) fn new(kind: Kind, flags: &ArgMatches) -> Result<Self, ConfigError> {
        let mut selection = Selection::of(kind);
        for (name, value) in action::fields(kind.selectors(), flags) {
            let set = selection.set(&name, &value);
            set.map_err(|problem| ConfigError(vec![format!("--{name}: {problem}")]))?;
        }
        let by_reason = kind == Kind::Failing && given::<ByReason>(flags).by_reason;
        Ok(Self { selection, by_reason, how: given(flags) })
    }

    /// The rows as text; `None` where a selection has none.
    fn text<T: Serialize + Debug, const N: usize>(
        &self,
        mut found: Vec<T>,
        heads: [&str; N],
        cells: fn(&T) -> [String; N],
    ) -> anyhow::Result<Option<String>> {
        if found.is_empty() && !self.selection.is_all() {
            return Ok(None);
        }
        cut(&mut found, self.how.limit as usize);
        Ok(Some(output::listed(self.how.json, &found, heads, cells)?))
    }
}

impl Run for List {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        let mut operator = on.operator().await?;
        // One more shows that there are more.
        let (of, limit) = (&self.selection, self.how.limit as usize + 1);
        let text = match of.kind {
            Kind::Letters => self.text(operator.dead_letters(of, limit).await?, LETTERS, letter)?,
            Kind::Failing if self.by_reason => {
                self.text(operator.failing_reasons(of, limit).await?, REASONS, reason)?
            }
            Kind::Failing => self.text(operator.failing(of, limit).await?, FAILING, failing)?,
            Kind::Delayed => self.text(operator.delayed(of, limit).await?, DELAYED, delayed)?,
            Kind::Sagas => self.text(operator.sagas(of, limit).await?, SAGAS, saga)?,
            _ => self.text(operator.parked(of, limit).await?, MESSAGES, message)?,
        };
        match text {
            Some(text) => output::end(&text),
            None => Err(action::nothing(&mut operator, of.kind, of.key.as_deref()).await),
        }
    }
}

const MESSAGES: [&str; 9] =
    ["ID", "KEY", "REPLAY", "STATE", "SUBJECT", "ORDERING KEY", "ATTEMPTS", "DIED OR NEXT", "REASON"];
fn message(message: &ParkedMessage) -> [String; 9] {
    [
        message.id.to_string(),
        message.key.clone(),
        replay(message),
        message.state.to_owned(),
        message.subject.clone(),
        message.ordering_key.clone().unwrap_or_default(),
        message.attempts.to_string(),
        message.died_at.or(message.next_attempt_at).map(time).unwrap_or_default(),
        message.reason.clone(),
    ]
}

/// The number of the replay that is meant, where it is not the message itself.
pub(super) fn replay(message: &ParkedMessage) -> String {
    if message.replay == 0 { String::new() } else { message.replay.to_string() }
}

const LETTERS: [&str; 8] = ["ID", "SCOPE", "KEY", "SUBJECT", "DELIVERIES", "BEHIND", "DIED", "REASON"];
fn letter(letter: &DeadLetter) -> [String; 8] {
    [
        letter.id.to_string(),
        letter.scope.clone(),
        letter.key.clone().unwrap_or_else(|| format!("none: --id {}", letter.id)),
        letter.subject.clone(),
        letter.deliveries.to_string(),
        letter.behind.map(|behind| behind.to_string()).unwrap_or_default(),
        time(letter.died_at),
        letter.edit.as_ref().map(|edit| format!("{edit}; ")).unwrap_or_default() + &letter.reason,
    ]
}

const FAILING: [&str; 8] = ["SCOPE", "KEY", "SUBJECT", "STREAM", "FAILURES", "FAILED", "NEXT", "REASON"];
fn failing(message: &FailingMessage) -> [String; 8] {
    let place = message.stream.as_ref().zip(message.stream_sequence);
    [
        message.scope.clone(),
        message.key.clone(),
        message.subject.clone().unwrap_or_default(),
        place.map(|(stream, sequence)| format!("{stream} {sequence}")).unwrap_or_default(),
        message.failures.to_string(),
        time(message.failed_at),
        message.due_at.map(time).unwrap_or_default(),
        message.reason.clone(),
    ]
}

const REASONS: [&str; 5] = ["SCOPE", "MESSAGES", "OLDEST", "NEXT", "REASON"];
fn reason(counted: &FailingReason) -> [String; 5] {
    [
        counted.scope.clone(),
        counted.messages.to_string(),
        time(counted.oldest_at),
        counted.next_at.map(time).unwrap_or_default(),
        counted.reason.clone(),
    ]
}

const DELAYED: [&str; 6] = ["NOT BEFORE", "KEY", "SUBJECT", "ORDERING KEY", "ENQUEUED", "PAYLOAD BYTES"];
fn delayed(message: &DelayedMessage) -> [String; 6] {
    [
        time(message.not_before),
        message.key.clone(),
        message.subject.clone(),
        message.ordering_key.clone().unwrap_or_default(),
        time(message.created_at),
        message.payload_bytes.to_string(),
    ]
}

const SAGAS: [&str; 7] = ["KEY", "TYPE", "STATE", "CURRENT STEP", "BEGAN", "CHANGED", "REASON"];
fn saga(saga: &Saga) -> [String; 7] {
    [
        saga.key.clone(),
        format!("{} v{}", saga.saga_type, saga.version),
        saga.state.clone(),
        saga.current.join(", "),
        time(saga.created_at),
        time(saga.changed_at),
        saga.reason.clone().unwrap_or_default(),
    ]
}
