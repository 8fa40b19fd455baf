//! Streams that the configuration declares: created when they are missing, also under a running
//! relay, compared when they are there; never changed, never deleted.

use std::time::Duration;

use async_nats::jetstream::{self, ErrorCode, context::GetStreamErrorKind, stream::Config};
use tokio::{sync::broadcast::error::RecvError, time::timeout};
use tracing::{error, info, warn};

use crate::{
    config::{Policy, Publish, StreamTable, describe},
    error::{RelayError, error_chain},
    nats::connection::Connection,
};

const TIMEOUT: Duration = Duration::from_secs(10);
/// Declared streams are looked at so often while no message misses one.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// The pause between two looks at declared streams, at least.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// The result of the look.
pub(crate) enum Finding {
    AsDeclared,
    Created,
    Missing,
    /// Field by field.
    Differs(String),
}

/// At start: each stream is there, and as declared where that is demanded.
pub(crate) async fn ready(streams: &[StreamTable], connection: &Connection) -> Result<(), RelayError> {
    let mut wrong = Vec::new();
    for stream in streams.iter().filter(|stream| stream.policy != Policy::Ignore) {
        let name = &stream.name;
        match look(stream, connection).await {
            Ok(Finding::AsDeclared) => {}
            Ok(Finding::Created) => info!(stream = name, "created the stream"),
            Ok(Finding::Differs(fields)) if stream.policy == Policy::Create => {
                warn!(stream = name, "the stream is not as declared, and is left as it is: {fields}");
            }
            Ok(Finding::Differs(fields)) => wrong.push(format!("stream {name} is not as declared: {fields}")),
            Ok(Finding::Missing) => wrong.push(format!("stream {name} is missing; its policy is verify")),
            Err(problem) => wrong.push(format!("stream {name} cannot be looked at: {problem}")),
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(RelayError::Stream(wrong.join("; "))) }
}

/// After NATS was away: a running relay goes on whatever is found, and says so.
pub(crate) async fn check(streams: &[StreamTable], connection: &Connection) {
    if let Err(found) = ready(streams, connection).await {
        error!("{found}; what cannot be published is set aside");
    }
}

/// Makes declared streams again that are deleted while the relay runs: now and then, and when a
/// message meets none. Never ends; there is nothing to do for streams that are only verified.
pub(crate) async fn keep(streams: &[StreamTable], connection: &Connection) {
    let streams: Vec<&StreamTable> =
        streams.iter().filter(|stream| stream.policy == Policy::Create).collect();
    if streams.is_empty() {
        return std::future::pending().await;
    }
    // What stands in the way is said once, not with every look.
    let mut said = None;
    loop {
        let _ = timeout(LOOK_EVERY, connection.no_stream.notified()).await;
        let mut problem = None;
        for stream in &streams {
            let name = &stream.name;
            match look(stream, connection).await {
                Ok(Finding::Created) => warn!(stream = name, "the stream was deleted; created it again"),
                Ok(Finding::AsDeclared | Finding::Differs(_) | Finding::Missing) => {}
                Err(error) => problem = Some(format!("stream {name} cannot be looked at: {error}")),
            }
        }
        if problem.is_some() && problem != said && !connection.over.is_cancelled() {
            warn!(problem, "a declared stream cannot be made again should it be deleted");
        }
        said = problem;
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}

async fn look(stream: &StreamTable, connection: &Connection) -> Result<Finding, String> {
    let context = connection.jetstream(TIMEOUT);
    let looking = async {
        match found(&context, &stream.name).await? {
            Some(config) => Ok(compare(stream, &config)),
            None if stream.policy == Policy::Verify => Ok(Finding::Missing),
            None => create(&context, stream).await,
        }
    };
    unless_denied(connection, looking).await
}

/// The answer to questions to JetStream, or that NATS does not let us ask: a request without
/// permission is not answered, but named aside.
pub(crate) async fn unless_denied<T>(
    connection: &Connection,
    asking: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let mut denied = connection.denied.subscribe();
    let denial = async {
        loop {
            match denied.recv().await {
                Ok(subject) if subject.starts_with('$') || subject.starts_with(&*connection.api) => {
                    return format!("NATS does not let the relay's user publish to {subject:?}");
                }
                // A message's: those of a running relay come between.
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    };
    let over = async {
        connection.over.cancelled().await;
        connection.reason.get().cloned().unwrap_or_else(|| "the connection to NATS was lost".to_owned())
    };
    tokio::select! {
        answer = timeout(2 * TIMEOUT, asking) => answer.unwrap_or_else(|_| Err("JetStream does not answer".to_owned())),
        problem = denial => Err(problem),
        problem = over => Err(problem),
    }
}

async fn found(context: &jetstream::Context, name: &str) -> Result<Option<Config>, String> {
    match context.get_stream(name).await {
        Ok(stream) => Ok(Some(stream.cached_info().config.clone())),
        Err(error) => match error.kind() {
            GetStreamErrorKind::JetStream(refused) if refused.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                Ok(None)
            }
            _ => Err(error_chain(&error)),
        },
    }
}

async fn create(context: &jetstream::Context, stream: &StreamTable) -> Result<Finding, String> {
    let created = context.create_stream(stream.config.clone()).await;
    let Err(error) = created else { return Ok(Finding::Created) };
    // Another relay may have been faster.
    match found(context, &stream.name).await? {
        Some(config) => Ok(compare(stream, &config)),
        None => Err(error_chain(&error)),
    }
}

/// Only what the file says is compared: the rest is the operator's.
pub(crate) fn compare(stream: &StreamTable, there: &Config) -> Finding {
    let pairs = describe(&stream.config).into_iter().zip(describe(there));
    let differing = pairs
        .filter(|((field, wanted), (_, found))| stream.given.contains(field) && wanted != found)
        // A stream that allows batches takes what is pipelined as well.
        .filter(|((field, _), _)| *field != "publish" || stream.publish == Publish::Atomic)
        .map(|((field, wanted), (_, found))| format!("{field} is {found}, declared {wanted}"));
    let differing: Vec<String> = differing.collect();
    if differing.is_empty() { Finding::AsDeclared } else { Finding::Differs(differing.join(", ")) }
}
