//! The writes of a settling transaction: cursors that move, messages that are set aside or sent at
//! last.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tracing::warn;

use super::trace_file::LaneRead;
use crate::{
    backoff::Backoff,
    config::{ReadLimits, Tuning},
    delivery::{
        Breaker, Cause, Decision, Failure, Message, Outcome, Read, Settlement,
        breaker::{Circuit, Place, SELDOM, THROTTLED, Tried, WAITS},
    },
    error::StoreError,
    postgres::{
        Claim, Session,
        settle::{Parking, Unparked},
    },
    telemetry::Metrics,
};

const ATTEMPT: Backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(300) };
const ERROR_BYTES_MAX: usize = 1000;
/// The longest pause of a message that costs no attempt.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// The longest pause of a message that is tried for others.
const PROBE_PAUSE_MAX: Duration = Duration::from_secs(5);

/// The writes of a settling transaction.
pub(super) struct Plan<'a> {
    tuning: &'a Tuning,
    breaker: &'a Breaker,
    pub(super) settlements: Vec<(i16, Settlement)>,
    pub(super) parkings: Vec<(&'a Message, Parking)>,
    unparked: Vec<Unparked<'a>>,
    /// Ordering keys whose first parked message may be due now.
    freed: BTreeSet<(i16, &'a str)>,
    /// The fate of tried messages, by lane and the stream or subject that had refused them.
    tried: BTreeMap<(i16, &'a str), Tried>,
    pub(super) done: usize,
    stored: u64,
    duplicates: u64,
    pub(super) full: bool,
    /// Lanes of which a limit may have cut the read.
    pub(super) cut_lanes: usize,
    /// How far the lanes were done, for the trace file.
    pub(super) reads: Vec<LaneRead>,
}

impl<'a> Plan<'a> {
    pub(super) fn new(full: bool, tuning: &'a Tuning, breaker: &'a Breaker) -> Self {
        Self {
            tuning,
            breaker,
            settlements: Vec::new(),
            parkings: Vec::new(),
            unparked: Vec::new(),
            freed: BTreeSet::new(),
            tried: BTreeMap::new(),
            done: 0,
            stored: 0,
            duplicates: 0,
            full,
            cut_lanes: 0,
            reads: Vec::new(),
        }
    }

    /// Settles the longest prefix of a lane's rows that is done; rows after it are sent again.
    pub(super) fn add_lane(
        &mut self,
        claim: &Claim,
        messages: &'a [Message],
        outcomes: &'a [Outcome],
        limits: ReadLimits,
    ) {
        let rows =
            || messages.iter().zip(outcomes).filter(|(m, _)| m.lane == claim.lane && m.parked.is_none());
        let ids: Vec<i64> = rows().map(|(message, _)| message.id).collect();
        let full = claim.is_full(rows().map(|(message, _)| message), limits);
        self.cut_lanes += usize::from(full);
        let done = rows().take_while(|(_, outcome)| **outcome != Outcome::Unknown).count();
        for (message, outcome) in rows().take(done) {
            self.add(message, outcome);
        }
        self.reads.push(LaneRead { lane: claim.lane, done, is_full: full });
        let read = Read { ids: &ids, full, snapshot: &claim.snapshot };
        self.settlements.extend(claim.cursor.advance(read, done).map(|settlement| (claim.lane, settlement)));
        // A drain or a reset that just ended has the rest of its lane before it.
        self.full |= done == ids.len()
            && (full || claim.cursor.target.is_some() || claim.cursor.reset_until.is_some());
    }

    pub(super) fn add(&mut self, message: &'a Message, outcome: &'a Outcome) {
        let attempts = message.parked.as_ref().map_or(0, |parked| parked.attempts);
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
                    self.note(message, |tried| tried.stored += 1);
                }
                return;
            }
            // It waits already. A due time is taken away from it, since the message would be read
            // again and again.
            Outcome::Behind if message.parked.is_some() => {
                if message.parked.as_ref().is_some_and(|parked| parked.is_due) {
                    self.note(message, |tried| tried.left += 1);
                    self.parkings.push((message, behind(attempts)));
                }
                return;
            }
            Outcome::Behind => {
                // Should the last one before it be delivered in this very pass, it is due at once.
                self.free(message);
                behind(attempts)
            }
            Outcome::Failed(decision, failure) => {
                let parking = self.set_aside(message, *decision, failure);
                if parking.dead && !self.tuning.read.dead_blocks {
                    self.free(message);
                }
                let stays = waits_for(message) == parking.waits_for.as_deref();
                // A message that was tried in its turn waits for long again. It is not a probe:
                // else each such message would have the next one tried.
                let is_probe = parking.delay_seconds.is_some_and(|delay| delay < WAITS.as_secs_f64());
                self.note(message, |tried| {
                    if stays {
                        tried.refused += 1;
                        tried.too_large += u64::from(is_probe && failure.spares_smaller());
                    } else {
                        tried.left += 1;
                    }
                });
                parking
            }
        };
        self.done += 1;
        self.parkings.push((message, parking));
    }

    fn free(&mut self, message: &'a Message) {
        self.freed.extend(message.ordering_key.as_deref().map(|key| (message.lane, key)));
    }

    /// Notes the fate of a message that has waited with others.
    fn note(&mut self, message: &'a Message, note: impl FnOnce(&mut Tried)) {
        let Some(waits_for) = waits_for(message) else { return };
        let tried = self.tried.entry((message.lane, waits_for)).or_default();
        let refused = tried.refused;
        note(tried);
        if tried.refused == refused {
            self.breaker.leave(message.lane, waits_for, message.id);
        }
    }

    /// Parks messages, forgets stored ones, and has others tried that waited for these; returns
    /// whether anything is due by that.
    pub(super) async fn write(&self, session: &Session, limits: ReadLimits) -> Result<bool, StoreError> {
        if !self.parkings.is_empty() {
            session.park(&self.parkings).await?;
        }
        if !self.unparked.is_empty() {
            session.unpark(&self.unparked).await?;
        }
        let groups = self.released(limits);
        if !groups.is_empty() {
            session.release_waiting(&groups).await?;
        }
        let freed: Vec<(i16, &str)> = self.freed.iter().copied().collect();
        if !freed.is_empty() {
            session.release(&freed, self.tuning.read.dead_blocks).await?;
        }
        Ok(!groups.is_empty() || !freed.is_empty())
    }

    /// How many of the messages that wait with others are tried next, by lane and cause.
    fn released(&self, limits: ReadLimits) -> Vec<(i16, &'a str, i64)> {
        let count = |tried: &Tried| i64::try_from(tried.freed()).unwrap_or(i64::MAX).min(limits.messages_max);
        let all = self.tried.iter().map(|((lane, waits_for), tried)| (*lane, *waits_for, count(tried)));
        all.filter(|(_, _, messages)| *messages > 0).collect()
    }

    fn set_aside(&self, message: &Message, decision: Decision, failure: &Failure) -> Parking {
        let before = message.parked.as_ref().map_or(0, |parked| parked.attempts);
        let waited = message.parked.as_ref().map_or(0.0, |parked| parked.seconds);
        let kept = waits_for(message).filter(|_| failure.cause() == Cause::NoStream).map(ToOwned::to_owned);
        let waits_for = kept.or_else(|| Circuit::of(failure, &message.subject).map(|of| of.to_string()));
        let pause_max = if waits_for.is_some() { PROBE_PAUSE_MAX } else { PAUSE_MAX };
        let attempts = before.saturating_add(1);
        let (attempts, delay) = match decision {
            Decision::Wait if failure.is_throttled() => (before, Some(THROTTLED)),
            // No attempt is spent, so the pause grows with the time that the message has waited
            // already.
            Decision::Wait => {
                let pause = Duration::from_secs_f64((waited / 2.0).clamp(0.5, pause_max.as_secs_f64()));
                (before, Some(Backoff { first: pause, max: pause }.delay(0)))
            }
            Decision::Park if attempts < self.tuning.attempts_max => {
                (attempts, Some(ATTEMPT.delay(before.unsigned_abs())))
            }
            Decision::Park | Decision::Dead | Decision::Away => (attempts, None),
        };
        let place =
            |waits_for: &String, delay| self.breaker.place(message.lane, waits_for, message.id, delay);
        let is_due = message.parked.as_ref().is_some_and(|parked| parked.is_due);
        let (attempts, delay, waits_for) = match waits_for.zip(delay) {
            // It was freed for a message that passed, perhaps by another relay.
            Some((waits_for, delay)) if failure.is_throttled() && is_due => {
                (before, Some(delay), Some(waits_for))
            }
            None => (attempts, delay, None),
            Some((waits_for, delay)) => match place(&waits_for, delay) {
                Place::Probe => (attempts, Some(delay), Some(waits_for)),
                Place::Waits => (before, Some(WAITS), Some(waits_for)),
                Place::Alone => (attempts, Some(delay.max(SELDOM.delay(0))), None),
            },
        };
        Parking {
            attempts,
            delay_seconds: delay.map(|delay| delay.as_secs_f64()),
            dead: delay.is_none(),
            error: error_text(failure),
            cause: failure.cause(),
            waits_for,
        }
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
        let tried_again = |(_, parking): &&(_, Parking)| !parking.dead && parking.delay_seconds.is_some();
        for (message, parking) in self.parkings.iter().filter(tried_again) {
            if !metrics.health.may_report_parking(parking.cause) {
                continue;
            }
            let messages = self.parkings.iter().filter(|(_, other)| other.cause == parking.cause).count();
            warn!(
                messages,
                key = message.key,
                subject = message.subject,
                error = parking.error,
                "messages are set aside and tried again; said once a minute at most for each cause"
            );
        }
    }
}

fn behind(attempts: i32) -> Parking {
    let error = "waits behind its ordering key".into();
    Parking { attempts, delay_seconds: None, dead: false, error, cause: Cause::Behind, waits_for: None }
}

/// The error as the database has it. Every client can answer on a subject, with any bytes:
/// PostgreSQL takes no NUL, and a terminal no control characters.
fn error_text(failure: &Failure) -> String {
    let mut error = failure.to_string().replace(char::is_control, " ");
    error.truncate(error.floor_char_boundary(ERROR_BYTES_MAX));
    error
}

/// The stream or subject that has refused a parked message with others before.
fn waits_for(message: &Message) -> Option<&str> {
    message.parked.as_ref()?.waits_for.as_deref()
}
