//! Streams that the configuration declares: created when they are missing, also under a running
//! relay, compared when they are there; never changed, never deleted.

use std::time::Duration;

use async_nats::jetstream::{self, stream::Config};
use oncebox_connect::nats::{found, unless_denied};
use tokio::time::timeout;
use tracing::{error, info, warn};

use crate::{
    config::{Policy, StreamTable},
    error::{RelayError, error_chain},
    nats::connection::Connection,
};

const TIMEOUT: Duration = Duration::from_secs(10);
/// Declared streams are looked at so often while no message misses one.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// The pause between two looks at declared streams, at least.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// The result of the look.
enum Finding {
    AsDeclared,
    Created,
    Missing,
    /// Field by field.
    Differs(String),
}

/// At start: each stream is there, and as declared where that is demanded.
pub(crate) async fn ready(streams: &[StreamTable], connection: &Connection) -> Result<(), RelayError> {
    let (mut wrong, mut unknown) = (Vec::new(), Vec::new());
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
            Err(problem) if stream.is_implied => warn!(
                stream = name,
                problem,
                "the bucket of the option object-store is not there, and cannot be made: large payloads are set aside until it is; \
                 declare the stream with the limits that the account demands, such as max_bytes"
            ),
            Err(problem) => unknown.push(format!("stream {name} cannot be looked at: {problem}")),
        }
    }
    match (wrong.is_empty(), unknown.is_empty()) {
        (true, true) => Ok(()),
        (true, false) => Err(RelayError::StreamUnknown(unknown.join("; "))),
        (false, _) => {
            wrong.extend(unknown);
            Err(RelayError::Stream(wrong.join("; ")))
        }
    }
}

/// After NATS was away: a running relay logs each problem that it finds, and goes on.
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
    // A problem is logged once, not with every look.
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
            Some(info) => Ok(compare(stream, &info.config)),
            None if stream.policy == Policy::Verify => Ok(Finding::Missing),
            None => create(&context, stream).await,
        }
    };
    unless_denied(connection, looking).await
}

async fn create(context: &jetstream::Context, stream: &StreamTable) -> Result<Finding, String> {
    let created = context.create_stream(stream.config.clone()).await;
    let Err(error) = created else { return Ok(Finding::Created) };
    // Another relay may have been faster.
    match found(context, &stream.name).await? {
        Some(info) => Ok(compare(stream, &info.config)),
        None => Err(error_chain(&error)),
    }
}

fn compare(stream: &StreamTable, there: &Config) -> Finding {
    stream.differences(there).map_or(Finding::AsDeclared, Finding::Differs)
}
