//! Asks a stream which of its acknowledged messages it still has.
//!
//! Both questions go to the stream's leader: another server may lag.

use std::time::SystemTime;

use async_nats::jetstream::stream::RetentionPolicy;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use oncebox_connect::nats::{QUESTION_TIMEOUT, message_max, stream_info, unless_denied};

use crate::{
    delivery::{Evidence, receipt::Extent},
    nats::{connection::Connection, stored_id::CONCURRENT},
};

/// How a stream is.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) created: SystemTime,
    pub(crate) extent: Extent,
    message_max: usize,
    pub(crate) subjects: Vec<String>,
    /// Consumed messages leave it: a work queue, or retention by interest.
    pub(crate) deletes_consumed: bool,
    pub(crate) replicas: usize,
}

/// The message that a stream has at the sequence of a receipt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) evidence: Evidence,
    /// The receipt's message itself is there,
    pub(crate) is_there: bool,
    /// and was stored before the stream was created, as the stream says: it was restored.
    pub(crate) is_older: bool,
}

/// The id of the message of a stream at a sequence.
pub(super) async fn stored_id(
    connection: &Connection,
    name: &str,
    sequence: u64,
) -> Result<Option<String>, String> {
    let (context, stream) = connection.jetstream_of(name, QUESTION_TIMEOUT);
    let bytes_max = connection.client.max_payload();
    let asking = connection.answers.stored_id(&context, stream, sequence, bytes_max);
    Ok(unless_denied(connection, asking).await?.and_then(|found| found.id))
}

/// How a stream is; `None` when it is not there.
pub(crate) async fn facts(connection: &Connection, name: &str) -> Result<Option<Facts>, String> {
    let Some(info) = stream_info(connection, name).await? else { return Ok(None) };
    Ok(Some(Facts {
        message_max: message_max(connection, &info),
        created: info.created.into(),
        extent: Extent { first: info.state.first_sequence, last: info.state.last_sequence },
        subjects: info.config.subjects,
        deletes_consumed: info.config.retention != RetentionPolicy::Limits,
        replicas: info.config.num_replicas.max(1),
    }))
}

/// A stream's evidence for sequences, in their order. Each comes with the id that the message there
/// should have.
pub(crate) async fn evidence(
    connection: &Connection,
    name: &str,
    facts: &Facts,
    wanted: &[(u64, Option<&str>)],
) -> Result<Vec<Found>, String> {
    let (context, name) = connection.jetstream_of(name, QUESTION_TIMEOUT);
    let context = &context;
    let one = |(sequence, id): (u64, Option<&str>)| {
        let id = id.map(str::to_owned);
        async move {
            let id = id.as_deref();
            if let Some(evidence) = facts.extent.judge(sequence, id) {
                return Ok(Found { evidence, is_there: false, is_older: false });
            }
            let stored = connection.answers.stored_id(context, name, sequence, facts.message_max).await?;
            let evidence = Evidence::of(id, stored.as_ref().map(|stored| stored.id.as_deref()));
            let is_there = evidence == Evidence::Proven;
            let stored_at = stored.and_then(|stored| stored.stored_at);
            let is_older = is_there && stored_at.is_some_and(|at| at < facts.created);
            Ok(Found { evidence, is_there, is_older })
        }
    };
    let asking = stream::iter(wanted.to_vec()).map(one).buffered(CONCURRENT).try_collect();
    unless_denied(connection, asking).await
}
