//! One question to JetStream, and its answer.

use std::time::Duration;

use async_nats::RequestErrorKind;
use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use super::connection::Connection;

/// How long JetStream may take to answer one question.
const QUESTION: Duration = Duration::from_secs(1);

/// The result of a question.
pub(super) enum Reply {
    Answer(Bytes),
    /// Nobody listens there: this account has no JetStream.
    NoResponders,
    /// NATS does not let us ask, and says so: it works.
    Denied,
    Silence,
}

impl Connection {
    /// Asks once, and waits until `end` at the latest.
    pub(super) async fn ask(&self, place: &str, question: &str, end: Instant) -> Reply {
        let denial = self.denial(|subject| subject == place);
        let asking = self.client.request(place.to_owned(), question.to_owned().into());
        tokio::select! {
            answer = timeout_at(end.min(Instant::now() + QUESTION), asking) => match answer {
                Ok(Ok(answer)) => Reply::Answer(answer.payload),
                Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => Reply::NoResponders,
                Ok(Err(_)) | Err(_) => Reply::Silence,
            },
            _ = denial => Reply::Denied,
        }
    }

    /// Asks for a stream by its name in receipts.
    pub(super) async fn ask_for_stream(&self, name: &str, end: Instant) -> Reply {
        let (api, stream) = self.api(name);
        self.ask(&format!("{api}.STREAM.INFO.{stream}"), "", end).await
    }

    /// Whether nobody answers for a stream.
    pub(crate) async fn is_out_of_reach(&self, name: &str) -> bool {
        let reply = self.ask_for_stream(name, Instant::now() + QUESTION).await;
        matches!(reply, Reply::NoResponders | Reply::Silence)
    }
}
