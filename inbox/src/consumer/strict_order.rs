//! Strict order: one process consumes, and continues from where everything before is settled.
//!
//! JetStream redelivers the messages of a dead process only after `ack_wait`, and delivers newer
//! messages meanwhile. So the process that takes over deletes the durable consumer and creates it
//! again at the acknowledgement floor: then everything unsettled comes in stream order, and the
//! inbox answers copies of messages that were handled above the floor. The same is done when a
//! delivery went missing on the way, which shows as a gap in the consumer's sequence.
//!
//! Why that suffices, even when two processes overlap for a moment (a paused process that lost its
//! lock unnoticed): each goes through the messages of an ordering key one at a time, from a point
//! before which all are settled, and passes a message only when it is committed, by itself or, as a
//! replay, by the other. So the commits of both together are in stream order. The lock only keeps
//! processes from doing the work twice.
//!
//! A crash between deleting and creating must not start over at the beginning, or after an
//! unsettled message: the table `consumer_position` has the sequence to continue from, written
//! before the deletion. The new consumer counts deliveries from 1 again, and a message that kills
//! every process must end as a dead letter: so messages that an earlier consumer delivered, and the
//! first message after a takeover, count as delivered before, which makes the inbox record their
//! runs.

use async_nats::jetstream::{
    consumer::{DeliverPolicy, Info, PullConsumer},
    stream::{RetentionPolicy, Stream},
};
use oncebox_claims::database::Database;
use oncebox_schema::Driver;
use tracing::info;

use super::{
    Settings,
    leader_lock::{self, Position},
    pull_session::Place,
    setup,
};
use crate::Error;

/// A JetStream consumer that delivers everything unsettled in stream order.
#[derive(Debug)]
pub(super) struct Continued {
    pub(super) consumer: PullConsumer,
    pub(super) place: Place,
}

/// Continues from the acknowledgement floor. `took_over`: the lock was acquired just now.
pub(super) async fn continued<D: Driver>(
    database: &Database<D>,
    stream: &Stream,
    settings: &Settings,
    took_over: bool,
) -> Result<Continued, Error> {
    let info = stream.cached_info();
    if info.config.retention == RetentionPolicy::Interest {
        let what = format!(
            "stream \"{}\" has interest retention, which deletes messages when a consumer is recreated; strict order \
             needs limits or work-queue retention",
            settings.stream
        );
        return Err(Error::Broker(what, "unsupported retention".into()));
    }
    let created = info.created.to_string();
    let position =
        Position { stream: &settings.stream, durable: &settings.durable, stream_created: &created };
    let found = setup::info(stream, settings).await?;
    let is_untouched = found.as_ref().is_some_and(is_untouched);
    if let Some(found) = &found
        && !is_untouched
        && found.num_ack_pending == 0
        && found.delivered.stream_sequence <= info.state.last_sequence
    {
        let delivered = found.delivered.consumer_sequence;
        return Ok(Continued {
            consumer: setup::consumer(stream, settings).await?,
            place: Place { delivered, ..Place::default() },
        });
    }
    let next = match &found {
        Some(found) => Some(next_sequence(found, info.state.last_sequence)),
        None => leader_lock::position(database, position).await?,
    };
    let Some(next) = next else {
        let consumer = setup::create(stream, settings, DeliverPolicy::All).await?;
        return Ok(Continued { consumer, place: Place::default() });
    };
    let first_deliveries = leader_lock::continue_from(database, position, next, took_over).await?;
    // Perhaps all, where the consumer before it is not known.
    let known = found.as_ref().filter(|_| !is_untouched);
    let delivered_before = known.map_or(info.state.last_sequence, |found| found.delivered.stream_sequence);
    if found.is_some() {
        stream.delete_consumer(&settings.durable).await.map_err(|error| {
            Error::Broker(
                format!("delete consumer \"{}\" to create it again", settings.durable),
                error.into(),
            )
        })?;
    }
    let start = match info.config.retention {
        // Settled messages are gone from the stream; no other start is allowed.
        RetentionPolicy::WorkQueue => DeliverPolicy::All,
        _ => DeliverPolicy::ByStartSequence { start_sequence: next },
    };
    info!(
        stream = settings.stream,
        durable = settings.durable,
        next_sequence = next,
        "consumer continued in order"
    );
    let place = Place { delivered: 0, first_deliveries, delivered_before };
    Ok(Continued { consumer: setup::create(stream, settings, start).await?, place })
}

/// Whether an earlier takeover has created it, and ended before anything was delivered: it does not
/// know which messages the consumer before it had delivered.
fn is_untouched(found: &Info) -> bool {
    found.delivered.consumer_sequence == 0
        && matches!(found.config.deliver_policy, DeliverPolicy::ByStartSequence { .. })
}

pub(super) fn next_sequence(found: &Info, last_sequence: u64) -> u64 {
    // nats-server 2.9 reports a floor of 0 until the first message after the start is settled.
    let start = match found.config.deliver_policy {
        DeliverPolicy::ByStartSequence { start_sequence } => start_sequence,
        _ => 1,
    };
    // Never beyond the stream's end: after a loss there, new messages get the lost ones' numbers.
    (found.ack_floor.stream_sequence + 1).max(start).min(last_sequence + 1)
}
