//! What a settling transaction writes: cursors that move, messages that are set aside or sent at
//! last.

use std::{collections::BTreeSet, time::Duration};

use tracing::warn;

use crate::{
    backoff::Backoff,
    config::{ReadLimits, Tuning},
    delivery::{
        cursor::{Read, Settlement},
        decision::{Cause, Decision, Failure},
        message::Message,
        outcome::Outcome,
    },
    postgres::{
        claim::Claim,
        settle::{Parking, Unparked},
    },
    telemetry::metrics::Metrics,
};

const ATTEMPT: Backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(300) };
const ERROR_BYTES_MAX: usize = 1000;
/// The writes of a settling transaction.
#[derive(Default)]
pub(super) struct Plan<'a> {
    pub(super) settlements: Vec<(i16, Settlement)>,
    pub(super) parkings: Vec<(&'a Message, Parking)>,
    pub(super) unparked: Vec<Unparked<'a>>,
    /// Ordering keys whose first parked message may be due now.
    pub(super) freed: BTreeSet<(i16, &'a str)>,
    pub(super) done: usize,
    stored: u64,
    duplicates: u64,
    pub(super) full: bool,
}

impl<'a> Plan<'a> {
    pub(super) fn new(full: bool) -> Self {
        Self { full, ..Self::default() }
    }

    /// Settles the longest prefix of a lane's rows that is done; what was sent beyond it is sent
    /// again.
    pub(super) fn add_lane(
        &mut self,
        claim: &Claim,
        messages: &'a [Message],
        outcomes: &'a [Outcome],
        limits: ReadLimits,
        tuning: &Tuning,
    ) {
        let rows =
            || messages.iter().zip(outcomes).filter(|(m, _)| m.lane == claim.lane && m.parked.is_none());
        let ids: Vec<i64> = rows().map(|(message, _)| message.id).collect();
        let full = claim.is_full(rows().map(|(message, _)| message), limits);
        let done = rows().take_while(|(_, outcome)| **outcome != Outcome::Unknown).count();
        for (message, outcome) in rows().take(done) {
            self.add(message, outcome, tuning);
        }
        let read = Read { ids: &ids, full, snapshot: &claim.snapshot };
        self.settlements.extend(claim.cursor.advance(read, done).map(|settlement| (claim.lane, settlement)));
        // A drain or a reset that just ended has the rest of its lane before it.
        self.full |= done == ids.len()
            && (full || claim.cursor.target.is_some() || claim.cursor.reset_until.is_some());
    }

    pub(super) fn add(&mut self, message: &'a Message, outcome: &'a Outcome, tuning: &Tuning) {
        let attempts = message.parked.map_or(0, |parked| parked.attempts);
        let parking = match outcome {
            Outcome::Unknown => return,
            Outcome::Passed => {
                self.done += 1;
                return;
            }
            Outcome::Stored { duplicate, stream, sequence, .. } => {
                self.done += 1;
                self.stored += 1;
                self.duplicates += u64::from(*duplicate);
                if message.parked.is_some() {
                    self.unparked.push(Unparked { message, stream, sequence: *sequence });
                    self.free(message);
                }
                return;
            }
            // It waits already; a due time that it need not have would have it read again and
            // again.
            Outcome::Behind if message.parked.is_some() => {
                let is_due = message.parked.is_some_and(|parked| parked.is_due);
                self.parkings.extend(is_due.then(|| (message, behind(attempts))));
                return;
            }
            Outcome::Behind => {
                // Should the last one before it be delivered in this very pass, it is due at once.
                self.free(message);
                behind(attempts)
            }
            Outcome::Failed(decision, failure) => {
                let parking = set_aside(message, *decision, failure, tuning);
                if parking.dead && !tuning.read.dead_blocks {
                    self.free(message);
                }
                parking
            }
        };
        self.done += 1;
        self.parkings.push((message, parking));
    }

    fn free(&mut self, message: &'a Message) {
        self.freed.extend(message.ordering_key.as_deref().map(|key| (message.lane, key)));
    }

    pub(super) fn observe(&self, metrics: &Metrics) {
        #[expect(clippy::cast_precision_loss, reason = "a histogram's bucket")]
        metrics.batch_messages.observe(self.done as f64);
        metrics.published.inc_by(self.stored);
        metrics.duplicate_acks.inc_by(self.duplicates);
        metrics.parked.inc_by(self.parkings.len() as u64);
        for (message, parking) in self.parkings.iter().filter(|(_, parking)| parking.dead) {
            metrics.died.inc();
            warn!(key = message.key, subject = message.subject, error = parking.error, "message is dead");
        }
        let parked =
            self.parkings.iter().find(|(_, parking)| !parking.dead && parking.delay_seconds.is_some());
        if let Some((message, parking)) = parked.filter(|_| metrics.health.may_report_parking()) {
            warn!(
                messages = self.parkings.len(),
                key = message.key,
                subject = message.subject,
                error = parking.error,
                "messages are set aside and tried again; said once a minute at most"
            );
        }
    }
}

fn behind(attempts: i32) -> Parking {
    let error = "waits behind its ordering key".into();
    Parking { attempts, delay_seconds: None, dead: false, error, cause: Cause::Behind }
}

/// What the database is told. Anybody can answer on a subject, with any bytes: PostgreSQL takes no
/// NUL, and a terminal no control characters.
fn error_text(failure: &Failure) -> String {
    let mut error = failure.to_string().replace(char::is_control, " ");
    error.truncate(error.floor_char_boundary(ERROR_BYTES_MAX));
    error
}

fn set_aside(message: &Message, decision: Decision, failure: &Failure, tuning: &Tuning) -> Parking {
    let before = message.parked.map_or(0, |parked| parked.attempts);
    let error = error_text(failure);
    let attempts = before.saturating_add(1);
    let (attempts, delay_seconds) = match decision {
        // No attempt is spent, so the pause grows with the time that the message has waited
        // already.
        Decision::Wait => {
            let waited = message.parked.map_or(0.0, |parked| parked.seconds);
            let pause = Duration::from_secs_f64((waited / 2.0).clamp(0.5, 30.0));
            (before, Some(Backoff { first: pause, max: pause }.delay(0).as_secs_f64()))
        }
        Decision::Park if attempts < tuning.attempts_max => {
            (attempts, Some(ATTEMPT.delay(before.unsigned_abs()).as_secs_f64()))
        }
        Decision::Park | Decision::Dead | Decision::Away => (attempts, None),
    };
    Parking { attempts, delay_seconds, dead: delay_seconds.is_none(), error, cause: failure.cause() }
}
