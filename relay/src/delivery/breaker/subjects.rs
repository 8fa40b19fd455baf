//! Subjects without an answer: see the table of `breaker`.

use std::time::Duration;

use tokio::time::Instant;

use super::Breaker;
use crate::delivery::{decision::Failure, subjects::covers};

/// A silent subject is refused unsent for this time.
pub(super) const SILENT_FOR: Duration = Duration::from_secs(10);
/// The most silent subjects that are remembered; the relay forgets the oldest first.
pub(super) const SILENT_MAX: usize = 256;

/// The publisher's way with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// Closed.
    Publish,
    /// Open, for this reason.
    Refuse(Failure),
    /// Half open: ask JetStream first.
    Ask,
}

#[derive(Debug)]
pub(super) struct Silent {
    patterns: Vec<String>,
    failure: Failure,
    until: Instant,
}

impl Silent {
    fn takes(&self, subject: &str) -> bool {
        self.patterns.iter().any(|pattern| covers(pattern, subject))
    }
}

impl Breaker {
    /// Messages for these subjects get no answer. If a subject already has a failure about which
    /// JetStream can be asked, it keeps that one when the new failure comes from an unanswered
    /// question.
    pub(crate) fn open_subjects(&self, patterns: Vec<String>, failure: Failure) {
        let silent = &mut self.circuits().silent;
        let keeps = |known: &Silent| known.failure.shows_in_streams() && !failure.shows_in_streams();
        silent.retain(|known| known.patterns != patterns || keeps(known));
        if silent.len() >= SILENT_MAX {
            silent.remove(0);
        }
        silent.push(Silent { patterns, failure, until: Instant::now() + SILENT_FOR });
    }

    /// JetStream sees no obstacle for the subject any more.
    pub(crate) fn close_subject(&self, subject: &str) {
        self.circuits().silent.retain(|known| !known.takes(subject));
    }

    /// Where a question would not tell, the relay forgets the circuit at its deadline.
    pub(crate) fn sending(&self, subject: &str) -> Sending {
        let silent = &mut self.circuits().silent;
        if silent.is_empty() {
            return Sending::Publish;
        }
        let now = Instant::now();
        silent.retain(|known| now < known.until || known.failure.shows_in_streams());
        match silent.iter().rev().find(|known| known.takes(subject)) {
            Some(known) if now < known.until => Sending::Refuse(known.failure.clone()),
            Some(_) => Sending::Ask,
            None => Sending::Publish,
        }
    }
}
