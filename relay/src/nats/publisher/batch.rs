//! A batch on its way: messages that are free to be sent, those in flight, and their outcomes.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use async_nats::StatusCode;
use tokio::time::Instant;

use super::{
    answer::{Ack, parse_ack},
    ordering::SendOrder,
    window::Window,
};
use crate::{
    config::Limits,
    delivery::{Decision, Failure, Message, Outcome, decision::decide, place::qualified, split},
};

/// A batch on its way.
pub(super) struct Batch<'a> {
    pub(super) messages: &'a [Message],
    pub(super) outcomes: Vec<Outcome>,
    /// For each message the next one of its ordering key.
    pub(super) next: Vec<Option<usize>>,
    /// Messages that may be sent now, in order.
    pub(super) free: VecDeque<usize>,
    /// When each message was sent; `None` for one that was not.
    pub(super) sent: Vec<Option<Instant>>,
    pub(super) in_flight: usize,
    /// The total weight of all messages in flight.
    pub(super) weight: usize,
    /// When something was last sent or answered. The clock is read once for all answers that are
    /// handled together.
    pub(super) progress: Instant,
    pub(super) first_number: u64,
    /// Subjects that are denied, or whose stream is full: the relay sends no more of the batch for
    /// them than messages of fewer bytes than this.
    refused: HashMap<&'a str, (usize, Failure)>,
    /// Messages that no stream took. JetStream is still to be asked for the reason.
    pub(super) orphans: Vec<usize>,
    /// Their subjects. No more messages are sent to them: a stream that comes back must be checked
    /// first.
    pub(super) orphaned: HashSet<&'a str>,
    /// Messages to subjects that were silent a while ago. JetStream is still to be asked whether
    /// that is over.
    pub(super) suspected: Vec<usize>,
    pub(super) away: Option<Failure>,
    /// Streams that have acknowledged something: few, and named once each.
    pub(super) streams: Vec<Arc<str>>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(messages: &'a [Message], first_number: u64) -> Self {
        let outcomes = messages.iter().map(|message| match (message.is_passed, message.blocked) {
            (true, _) => Outcome::Passed,
            (false, true) => Outcome::Behind,
            (false, false) => Outcome::Unknown,
        });
        Self {
            messages,
            outcomes: outcomes.collect(),
            next: vec![None; messages.len()],
            free: VecDeque::new(),
            sent: vec![None; messages.len()],
            in_flight: 0,
            weight: 0,
            progress: Instant::now(),
            first_number,
            refused: HashMap::new(),
            orphans: Vec::new(),
            orphaned: HashSet::new(),
            suspected: Vec::new(),
            away: None,
            streams: Vec::new(),
        }
    }

    /// Frees, one by one, the messages that may be published and are not stored yet.
    pub(super) fn line_up(&mut self) {
        let waiting = self.messages.iter().zip(&self.outcomes).map(|(message, outcome)| {
            (*outcome == Outcome::Unknown).then_some((message.lane, message.ordering_key.as_deref()))
        });
        let SendOrder { free, next } = SendOrder::new(waiting);
        (self.free, self.next) = (free.into(), next);
    }

    pub(super) fn is_done(&self) -> bool {
        self.in_flight == 0 && self.free.is_empty() && self.orphans.is_empty() && self.suspected.is_empty()
    }

    /// Sent, and not answered.
    pub(super) fn is_open(&self, index: usize) -> bool {
        self.sent[index].is_some() && self.outcomes[index] == Outcome::Unknown
    }

    pub(super) fn open(&self) -> Vec<usize> {
        (0..self.messages.len()).filter(|index| self.is_open(*index)).collect()
    }

    pub(super) fn sent(&mut self, index: usize) {
        self.sent[index] = Some(self.progress);
        self.in_flight += 1;
        self.weight += Window::weight(self.messages[index].payload.len());
    }

    /// It is no longer in flight.
    fn landed(&mut self, index: usize) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.weight = self.weight.saturating_sub(Window::weight(self.messages[index].payload.len()));
    }

    pub(super) fn acknowledge(&mut self, ack: &async_nats::Message, window: &mut Window, limits: &Limits) {
        let number = ack.subject.rsplit('.').next().and_then(|text| text.parse::<u64>().ok());
        let index =
            number.and_then(|n| n.checked_sub(self.first_number)).and_then(|n| usize::try_from(n).ok());
        // This answers an earlier batch, or answers a second time: it comes too late to matter.
        let Some(index) = index.filter(|i| self.outcomes.get(*i) == Some(&Outcome::Unknown)) else { return };
        let Some(sent) = self.sent[index] else { return };
        window.answered(Window::weight(self.messages[index].payload.len()), sent, self.progress);
        self.landed(index);
        if ack.status == Some(StatusCode::NO_RESPONDERS) {
            // The message is answered now; a later answer for it means nothing.
            self.sent[index] = None;
            self.orphans.push(index);
            self.orphaned.insert(&self.messages[index].subject);
            return;
        }
        let answer = parse_ack(&ack.payload);
        if answer.as_ref().is_err_and(Failure::is_overload) {
            window.halve(sent, self.progress);
        }
        self.finish(index, answer, limits);
    }

    /// The name of a stream with its domain, kept once for all messages that it acknowledges.
    fn named(&mut self, stream: &str, domain: Option<&str>) -> Arc<str> {
        if let Some(known) = self.streams.iter().find(|known| split(known) == (domain, stream)) {
            return Arc::clone(known);
        }
        let name: Arc<str> = qualified(stream, domain).into();
        self.streams.push(Arc::clone(&name));
        name
    }

    /// If the relay may not publish to a subject, NATS sends an error that names only the subject:
    /// all messages in flight on it count as denied. Should one of these have been stored, it is
    /// sent again under the same id. Returns whether there was any.
    pub(super) fn deny(&mut self, subject: &str, limits: &Limits) -> bool {
        let failure = Failure::Denied { subject: subject.to_owned() };
        let first = self.messages.iter().find(|message| message.subject == subject);
        let Some(first) = first.filter(|first| self.refused_unsent(first).as_ref() != Some(&failure)) else {
            return false;
        };
        self.refused.insert(&first.subject, (0, failure.clone()));
        let open_before = self.in_flight;
        for index in self.open() {
            if self.messages[index].subject == subject {
                self.give_up(index, failure.clone(), limits);
            }
        }
        self.in_flight < open_before
    }

    /// The batch does not wait for its answer any more. If it was stored, it is sent again under
    /// the same id, before anything else of its ordering key.
    pub(super) fn give_up(&mut self, index: usize, failure: Failure, limits: &Limits) {
        self.landed(index);
        self.finish(index, Err(failure), limits);
    }

    /// Why a message need not be sent: one that is no larger has just been refused.
    pub(super) fn refused_unsent(&self, message: &Message) -> Option<Failure> {
        let (bytes, failure) = self.refused.get(message.subject.as_str())?;
        (message.payload_bytes >= *bytes).then(|| failure.clone())
    }

    fn note_full(&mut self, index: usize, failure: &Failure) {
        if !failure.is_full_stream() {
            return;
        }
        let message = &self.messages[index];
        let bytes = failure.refused_bytes(message.payload_bytes);
        if self.refused.get(message.subject.as_str()).is_none_or(|(known, _)| bytes < *known) {
            self.refused.insert(&message.subject, (bytes, failure.clone()));
        }
    }

    pub(super) fn finish(&mut self, index: usize, answer: Result<Ack<'_>, Failure>, limits: &Limits) {
        let decided = answer.map_err(|failure| {
            let failure = failure.knowing(limits.expected_stream.as_deref());
            (decide(&failure), failure)
        });
        self.outcomes[index] = match decided {
            Ok(Ack { stream, domain, sequence, duplicate }) => Outcome::Stored {
                duplicate,
                stream: self.named(&stream, domain.as_deref()),
                sequence,
                sent_at: self.sent[index].unwrap_or(self.progress),
                acknowledged_at: self.progress,
            },
            Err((Decision::Away, failure)) => {
                self.away = Some(failure);
                return;
            }
            Err((decision, failure)) => {
                self.note_full(index, &failure);
                Outcome::Failed(decision, failure)
            }
        };
        let holds_back = match &self.outcomes[index] {
            Outcome::Failed(Decision::Dead, _) => limits.dead_blocks,
            Outcome::Failed(..) => true,
            Outcome::Stored { .. } | Outcome::Unknown | Outcome::Behind | Outcome::Passed => false,
        };
        let mut next = self.next[index];
        if !holds_back {
            self.free.extend(next);
            return;
        }
        while let Some(behind) = next {
            self.outcomes[behind] = Outcome::Behind;
            next = self.next[behind];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_refusal_the_rest_of_the_batch_for_the_subject_is_refused_unsent() {
        let values = [("database-url", "postgres://localhost/x"), ("nats-url", "nats://localhost")];
        let values = values.map(|(name, value)| (name, value.to_owned())).into();
        let limits = crate::Config::from_values(&values).unwrap().tuning.limits;
        let message = |subject: &str, payload_bytes| Message {
            subject: subject.to_owned(),
            payload_bytes,
            ..Message::example()
        };
        let messages = [message("a", 9), message("a", 8), message("b", 9), message("b", 8)];
        let mut batch = Batch::new(&messages, 0);
        batch.sent(0);
        assert!(batch.deny("a", &limits), "one was in flight");
        assert!(!batch.deny("a", &limits) && !batch.deny("c", &limits));
        let full =
            Failure::Refused { err_code: 10077, description: "maximum bytes exceeded".into(), stream: None };
        batch.finish(2, Err(full.clone()), &limits);
        let refused = messages.each_ref().map(|message| batch.refused_unsent(message));
        let denied = Some(Failure::Denied { subject: "a".into() });
        assert_eq!(refused, [denied.clone(), denied, Some(full), None], "smaller ones may fit");
    }
}
