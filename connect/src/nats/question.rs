//! Questions to JetStream about streams.

use std::{sync::Arc, time::Duration};

use async_nats::jetstream::{Context, ErrorCode, context::GetStreamErrorKind, stream::Info};
use tokio::{sync::broadcast::error::RecvError, time::timeout};

use super::Connection;
use crate::error::error_chain;

/// For one question.
pub const QUESTION_TIMEOUT: Duration = Duration::from_secs(5);
/// For several that belong together.
const TIMEOUT: Duration = Duration::from_secs(20);

impl Connection {
    /// The next subject of this kind, from now on, that NATS does not let us publish to.
    pub fn denial(&self, is_meant: impl Fn(&str) -> bool) -> impl Future<Output = Arc<str>> {
        let mut denied = self.denied.subscribe();
        async move {
            loop {
                match denied.recv().await {
                    Ok(subject) if is_meant(&subject) => return subject,
                    // A message's: those of a running relay come between.
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => std::future::pending().await,
                }
            }
        }
    }
}

/// The answer to questions to JetStream, or that NATS does not let us ask: a request without
/// permission is not answered, but named aside.
///
/// # Errors
/// The question's own, or why there is no answer.
pub async fn unless_denied<T>(
    connection: &Connection,
    asking: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let denial =
        connection.denial(|subject| subject.starts_with('$') || subject.starts_with(&*connection.api));
    let over = async {
        connection.over.cancelled().await;
        connection.reason.get().cloned().unwrap_or_else(|| "the connection to NATS was lost".to_owned())
    };
    tokio::select! {
        answer = timeout(TIMEOUT, asking) => answer.unwrap_or_else(|_| Err("JetStream does not answer".to_owned())),
        subject = denial => Err(format!("NATS does not let the relay's user publish to {subject:?}")),
        problem = over => Err(problem),
    }
}

/// JetStream's description of a stream; `None` when it is not there. The stream's leader answers:
/// another server may lag.
///
/// # Errors
/// Why there is no answer.
pub async fn stream_info(connection: &Connection, name: &str) -> Result<Option<Info>, String> {
    let asking = async {
        let (context, name) = connection.jetstream_of(name, QUESTION_TIMEOUT);
        found(&context, name).await
    };
    unless_denied(connection, asking).await
}

/// The same without regard to permissions.
///
/// # Errors
/// The question's own.
pub async fn found(context: &Context, name: &str) -> Result<Option<Info>, String> {
    match context.get_stream(name).await {
        Ok(stream) => Ok(Some(stream.cached_info().clone())),
        Err(error) => match error.kind() {
            GetStreamErrorKind::JetStream(refused) if refused.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                Ok(None)
            }
            _ => Err(error_chain(&error)),
        },
    }
}

/// None of the stream's messages has more bytes, as far as the limits of now tell.
#[must_use]
pub fn message_max(connection: &Connection, info: &Info) -> usize {
    let all = usize::try_from(info.state.bytes).unwrap_or(usize::MAX);
    let limit = usize::try_from(info.config.max_message_size).ok().filter(|limit| *limit > 0);
    connection.client.max_payload().min(all).min(limit.unwrap_or(usize::MAX))
}

/// The size of JetStream's answer with a message of this size, which stands in it in base64.
#[must_use]
pub fn answer_max(message_max: usize) -> usize {
    message_max.saturating_mul(4) / 3 + 1024
}
