//! Whether everything is done: no message is due or set aside, and no consumer has one to handle.
//! For tests, which wait until all that they have caused has happened.

use oncebox_connect::{config::Config, words::counted};

use crate::{
    Kind, Operator, Result, Selection, Status,
    failing::FailingMessage,
    parked::ParkedMessage,
    survey::{ConsumerStatus, Survey},
};

/// Messages of each kind that are named.
const NAMED_MAX: usize = 10;

/// The messages that are not done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unrest {
    /// Still to be done, and why it is not, a line each; nothing when all is quiet.
    pub waiting: Vec<String>,
    /// Given up: dead messages of the outbox and dead letters of inboxes, a line each.
    pub given_up: Vec<String>,
}

impl Operator {
    /// Looks for messages of this database that are not done: due, parked, or waiting at a consumer
    /// of the streams that take them, and those that their handlers have enqueued meanwhile. A
    /// message that is delayed for later counts as done. `consumers`, each `STREAM/NAME`, must be
    /// there: before a consumer has begun, no consumer waits for its messages.
    ///
    /// # Errors
    /// PostgreSQL or NATS cannot be reached, or one of them refuses.
    pub async fn unrest(&mut self, config: &Config, consumers: &[String]) -> Result<Result<Unrest, String>> {
        let (before, marks) = self.stand().await?;
        // In this order: all that was published is seen at the consumers, and all that their
        // handlers have committed before they acknowledged is seen in the database after that.
        let survey = match before.ask_nats(config).await {
            Ok(survey) => survey,
            Err(problem) => return Ok(Err(problem)),
        };
        let (after, later) = self.stand().await?;
        let mut waiting = in_outbox(&before);
        waiting.extend(at_consumers(&survey, consumers));
        if waiting.is_empty() && !marks.is_nothing_newer(&later) {
            waiting.push("messages were enqueued just now".to_owned());
        }
        if !waiting.is_empty() {
            waiting.extend(self.set_aside(Kind::Parked, "is parked").await?);
            waiting.extend(self.fail().await?);
        }
        let mut given_up = Vec::new();
        if after.dead > 0 {
            given_up = self.set_aside(Kind::Dead, "is dead").await?;
        }
        if after.dead_letters.is_some_and(|letters| !letters.is_empty()) {
            let letters = self.dead_letters(&Selection::of(Kind::Letters), NAMED_MAX).await?;
            given_up.extend(letters.iter().map(|letter| {
                let key = letter.key.clone();
                let key = key.unwrap_or_else(|| format!("a message without a key (letter {})", letter.id));
                format!("{key} on {} is a dead letter of {}: {}", letter.subject, letter.scope, letter.reason)
            }));
        }
        Ok(Ok(Unrest { waiting, given_up }))
    }

    async fn set_aside(&self, kind: Kind, is: &str) -> Result<Vec<String>> {
        let found = self.parked(&Selection::of(kind), NAMED_MAX).await?;
        let line = |message: &ParkedMessage| {
            format!("{} on {} {is}: {}", message.key, message.subject, message.reason)
        };
        Ok(found.iter().map(line).collect())
    }

    async fn fail(&self) -> Result<Vec<String>> {
        let found = self.failing(&Selection::of(Kind::Failing), NAMED_MAX).await?;
        let line = |message: &FailingMessage| {
            let FailingMessage { key, scope, failures, reason, .. } = message;
            format!("{key} fails in {scope}, {} so far: {reason}", counted(failures, "time"))
        };
        Ok(found.iter().map(line).collect())
    }
}

fn in_outbox(status: &Status) -> Vec<String> {
    let counted = [
        (status.backlog_messages, "due in the outbox"),
        (status.parked, "parked"),
        (status.replays, "to be replayed"),
    ];
    let mut lines: Vec<String> =
        counted.iter().filter(|(count, _)| *count > 0).map(|(count, are)| format!("{count} {are}")).collect();
    if status.delayed.late_seconds > 0.0 {
        lines.push("a delayed message is due".to_owned());
    }
    if !status.enqueuing.is_empty() {
        lines.push("a transaction that has enqueued messages is open".to_owned());
    }
    lines
}

fn at_consumers(survey: &Survey, named: &[String]) -> Vec<String> {
    let name = |consumer: &ConsumerStatus| format!("{}/{}", consumer.stream, consumer.name);
    // A stream that takes none of the messages has nothing for its consumers.
    let is_missing = |wanted: &&String| {
        let stream = wanted.split('/').next().unwrap_or_default();
        survey.streams.iter().any(|known| known.name == stream)
            && !survey.consumers.iter().any(|consumer| name(consumer) == **wanted)
    };
    let missing = named.iter().filter(is_missing).map(|name| format!("the consumer {name} has not begun"));
    let busy = survey.consumers.iter().filter(|consumer| consumer.pending + consumer.unacknowledged > 0);
    let busy = busy.map(|consumer| {
        let ConsumerStatus { pending, unacknowledged, .. } = consumer;
        format!(
            "the consumer {} has {pending} to deliver and {unacknowledged} to acknowledge",
            name(consumer)
        )
    });
    missing.chain(busy).chain(survey.unusable.clone()).chain(survey.unasked.clone()).collect()
}
