//! The payload of a message that lies in a bucket of the Object Store, as consumers fetch it:
//! `inbox/src/consumer/large.rs`.

use async_nats::{
    HeaderMap,
    jetstream::{
        ErrorCode,
        message::StreamMessage,
        stream::{RawMessageError, RawMessageErrorKind},
    },
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE};
use oncebox_schema::error_chain;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use super::{ACK_TIMEOUT, Refused, Resender};

/// No relay puts a larger payload into a bucket, so a header that names one is forged.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// The payload of a message.
#[derive(Debug)]
pub(crate) enum Payload {
    /// Whole, from the message or from its bucket.
    Whole(Vec<u8>),
    /// The bucket does not have it, or has another one.
    Gone,
}

/// The description of an object, as far as a reader needs it.
#[derive(Deserialize)]
struct Description {
    nuid: String,
}

impl Resender {
    /// The payload of a stored message.
    pub(crate) async fn payload(&self, stored: &StreamMessage) -> Result<Payload, Refused> {
        let Some(place) = text(&stored.headers, "Oncebox-Object").filter(|_| stored.payload.is_empty())
        else {
            return Ok(Payload::Whole(stored.payload.to_vec()));
        };
        let size =
            text(&stored.headers, "Oncebox-Object-Bytes").and_then(|bytes| bytes.parse::<usize>().ok());
        let size = size.filter(|size| *size <= BYTES_MAX);
        let Some(((bucket, name), size)) = place.split_once('/').zip(size) else { return Ok(Payload::Gone) };
        let Some(payload) = self.object(bucket, name, size).await? else { return Ok(Payload::Gone) };
        let found = format!("SHA-256={}", BASE64_URL_SAFE.encode(Sha256::digest(&payload)));
        let is_it = payload.len() == size && text(&stored.headers, "Oncebox-Object-Digest") == Some(&found);
        Ok(if is_it { Payload::Whole(payload) } else { Payload::Gone })
    }

    /// Chunk after chunk, so that each answer is small; no more of them than the message names.
    async fn object(&self, bucket: &str, name: &str, size: usize) -> Result<Option<Vec<u8>>, Refused> {
        let stream = format!("OBJ_{bucket}");
        let (context, stream) = self.connection.jetstream_of(&stream, ACK_TIMEOUT);
        let stream = context.get_stream_no_info(stream).await?;
        let subject = format!("$O.{bucket}.M.{}", BASE64_URL_SAFE.encode(name));
        let asking = timeout(ACK_TIMEOUT, stream.get_last_raw_message_by_subject(&subject));
        let Some(described) = found(asking.await?)? else { return Ok(None) };
        let Ok(Description { nuid }) = serde_json::from_slice(&described.payload) else { return Ok(None) };
        let subject = format!("$O.{bucket}.C.{nuid}");
        let (mut payload, mut next) = (Vec::new(), 1);
        while payload.len() < size {
            let asking = timeout(ACK_TIMEOUT, stream.get_first_raw_message_by_subject(&subject, next));
            let Some(chunk) = found(asking.await?)?.filter(|chunk| !chunk.payload.is_empty()) else {
                return Ok(None);
            };
            payload.extend_from_slice(&chunk.payload);
            next = chunk.sequence + 1;
        }
        Ok(Some(payload))
    }
}

fn found(answer: Result<StreamMessage, RawMessageError>) -> Result<Option<StreamMessage>, Refused> {
    match answer {
        Ok(message) => Ok(Some(message)),
        Err(error) => match error.kind() {
            RawMessageErrorKind::NoMessageFound => Ok(None),
            RawMessageErrorKind::JetStream(refused)
                if refused.error_code() == ErrorCode::STREAM_NOT_FOUND =>
            {
                Ok(None)
            }
            _ => Err(format!("read the payload from its bucket: {}", error_chain(&error)).into()),
        },
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let known = headers.iter().find(|(known, _)| known.to_string().eq_ignore_ascii_case(name));
    known.and_then(|(_, values)| values.first()).map(|value| value.as_str())
}
