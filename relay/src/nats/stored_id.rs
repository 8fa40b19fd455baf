//! Asks for the id of a stored message, with a bound on the bytes of answers.
//!
//! JetStream answers with all of the message, its payload as well. A server cuts a connection for
//! which more bytes wait than its `max_pending` (64 MiB unless set), and a relay must stay within
//! the memory that it promises. So it asks for no more at a time than may arrive at once.

use std::{sync::Arc, time::SystemTime};

use async_nats::{
    header::NATS_MESSAGE_ID,
    jetstream::{Context, Error, ErrorCode},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use oncebox_connect::nats::answer_max;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Semaphore;

use crate::error::error_chain;

/// The bytes that answers may have together, on one connection. The relay asks for a message that
/// is larger still when it asks for nothing else.
const ANSWERS_MAX: usize = 16 * 1024 * 1024;
/// The unit of shares of it: a small answer takes one.
const UNIT: usize = 256 * 1024;
/// Questions under way at once, at most.
pub(super) const CONCURRENT: usize = ANSWERS_MAX / UNIT;

/// The room for answers of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Answers {
    units: Arc<Semaphore>,
}

/// A stored message, without its payload: to skip that takes no memory.
#[derive(Deserialize)]
struct Answer {
    error: Option<Error>,
    message: Option<Stored>,
}

#[derive(Deserialize)]
struct Stored {
    #[serde(rename = "hdrs")]
    headers: Option<String>,
    time: Option<String>,
}

/// A stored message's id, and when it was stored.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) id: Option<String>,
    pub(super) stored_at: Option<SystemTime>,
}

impl Answers {
    pub(super) fn new() -> Self {
        Self { units: Arc::new(Semaphore::new(CONCURRENT)) }
    }

    /// The message at a sequence; `None` when there is none. It has `bytes_max` bytes at most.
    pub(super) async fn stored_id(
        &self,
        context: &Context,
        stream: &str,
        sequence: u64,
        bytes_max: usize,
    ) -> Result<Option<Identity>, String> {
        let _room = self.units.acquire_many(units(bytes_max)).await.map_err(|error| error_chain(&error))?;
        let question = json!({ "seq": sequence });
        let asked = context.request(format!("STREAM.MSG.GET.{stream}"), &question).await;
        match asked.map_err(|error| error_chain(&error))? {
            Answer { error: Some(error), .. } if error.error_code() == ErrorCode::NO_MESSAGE_FOUND => {
                Ok(None)
            }
            Answer { error: Some(error), .. } => Err(error_chain(&error)),
            Answer { message: Some(stored), .. } => {
                let stored_at = stored.time.as_deref().and_then(|time| humantime::parse_rfc3339(time).ok());
                stored.id().map(|id| Some(Identity { id, stored_at }))
            }
            Answer { error: None, message: None } => {
                Err("JetStream answered neither a message nor an error".to_owned())
            }
        }
    }
}

impl Stored {
    fn id(&self) -> Result<Option<String>, String> {
        let headers = BASE64_STANDARD.decode(self.headers.as_deref().unwrap_or_default());
        let headers = headers.map_err(|error| error_chain(&error))?;
        let headers = String::from_utf8_lossy(&headers);
        // The first line is the version of the format.
        let mut headers = headers.lines().skip(1).filter_map(|line| line.split_once(':'));
        let name: &str = NATS_MESSAGE_ID.as_ref();
        let found = headers.find(|(found, _)| *found == name);
        Ok(found.map(|(_, id)| id.trim().to_owned()))
    }
}

/// The share of an answer.
fn units(message_max: usize) -> u32 {
    let units = answer_max(message_max).div_ceil(UNIT).min(CONCURRENT);
    u32::try_from(units).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn questions_are_as_many_as_their_answers_have_room() {
        let at_once = |bytes_max| CONCURRENT / usize::try_from(units(bytes_max)).unwrap();
        assert_eq!([0, 1_000, 190_000].map(at_once), [64, 64, 64]);
        assert_eq!([1 << 20, 8 << 20, 64 << 20, usize::MAX].map(at_once), [10, 1, 1, 1]);
    }

    #[test]
    fn the_id_is_found_among_the_headers() {
        let id = |headers: &str| {
            Stored { headers: Some(BASE64_STANDARD.encode(headers)), time: None }.id().unwrap()
        };
        assert_eq!(id("NATS/1.0\r\na: b\r\nNats-Msg-Id: x:y z \r\n\r\n").as_deref(), Some("x:y z"));
        assert_eq!(id("NATS/1.0\r\nNats-Expected-Stream: S\r\n\r\n"), None);
        assert_eq!(Stored { headers: None, time: None }.id(), Ok(None));
    }

    proptest! {
        #[test]
        fn stored_headers_of_any_bytes_are_read(
            bytes in prop::collection::vec(any::<u8>(), 0..64),
            text in "(NATS/1.0|\r\n|: ?|Nats-Msg-Id|[ -~]{0,4}){0,12}",
        ) {
            for headers in [BASE64_STANDARD.encode(&bytes), BASE64_STANDARD.encode(&text), text] {
                if let Ok(Some(id)) = (Stored { headers: Some(headers.clone()), time: None }).id() {
                    prop_assert!(id.len() <= headers.len());
                }
            }
        }
    }
}
