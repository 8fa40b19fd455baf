//! The second step of a pass: each claimed message has its outcome.

use std::sync::Arc;

use super::{acknowledgements::Acknowledgements, claim::Claimed};
use crate::{
    delivery::{Message, Outcome, minute::Stored},
    telemetry::{Metrics, Traces},
};

/// Claimed messages, each with its outcome.
#[derive(Debug)]
pub struct Published {
    pub(super) claimed: Claimed,
    pub(super) outcomes: Vec<Outcome>,
    /// The first message of the last round: see `rounds`.
    pub(super) round: usize,
}

impl Published {
    pub(super) fn new(claimed: Claimed, mut outcomes: Vec<Outcome>) -> Self {
        outcomes.resize(claimed.messages.len(), Outcome::Unknown);
        Self { claimed, outcomes, round: 0 }
    }

    /// Takes back the acknowledgements of a stream that has given out a sequence again: it has lost
    /// messages, and nothing more is settled there until the relay has looked into it. Returns why.
    pub(super) fn distrust(&mut self) -> Option<String> {
        let Claimed { claims, messages, .. } = &self.claimed;
        let (before, round) = self.outcomes.split_at(self.round);
        let (stream, sequence) = {
            let acknowledged = Acknowledgements::new(claims, &messages[self.round..], round);
            let (stream, sequence) = acknowledged.regressed(before)?;
            (Arc::clone(stream), sequence)
        };
        for outcome in &mut self.outcomes {
            if matches!(outcome, Outcome::Stored { stream: of, .. } if **of == *stream) {
                *outcome = Outcome::Unknown;
            }
        }
        Some(format!("stream {stream} has given out the sequence {sequence} again: it has lost messages"))
    }

    /// The messages of the last round, with their outcomes.
    pub(super) fn last_round(&self) -> (&[Message], &[Outcome]) {
        (&self.claimed.messages[self.round..], &self.outcomes[self.round..])
    }

    /// Tells the metrics how old each message of the last round was when JetStream stored it (a
    /// duplicate was told of at its first copy), and the traces which were sent.
    pub(super) fn observe(&self, metrics: &Metrics, traces: Option<&Traces>) {
        let clock = &self.claimed.clock;
        let (messages, outcomes) = self.last_round();
        if let Some(traces) = traces {
            traces.published(messages, outcomes);
        }
        metrics.minute.note(messages.iter().zip(outcomes).filter_map(|(message, outcome)| {
            let Outcome::Stored { duplicate: false, acknowledged_at, .. } = outcome else { return None };
            let Message { key, subject, created_at, replay: None, .. } = message else { return None };
            let age_seconds = clock.age(*created_at, *acknowledged_at);
            metrics.message_lag.observe(age_seconds);
            Some(Stored { key, subject, created_at: *created_at, age_seconds })
        }));
    }
}
