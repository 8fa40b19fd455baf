//! Payloads that lie in a bucket of the NATS Object Store: they are fetched, and checked, before
//! the inbox sees the message.
//!
//! The consumer asks for one chunk after another: each answer is small, and one that is missing is
//! known at once. A reader of the bucket would wait for it.

use std::time::Duration;

use async_nats::jetstream::{
    self, ErrorCode,
    message::StreamMessage,
    stream::{RawMessageError, RawMessageErrorKind},
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE};
use bytes::Bytes;
use oncebox_claims::failure::text;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use crate::Received;

/// For an answer of JetStream.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Why a payload is not here.
#[derive(Debug)]
pub(super) enum Trouble {
    /// NATS did not answer: it is fetched again, and costs no attempt.
    Away(String),
    /// The object is missing, or is not the one that the message names.
    Wrong(String),
}

/// Where payloads are fetched from, and how large they may be.
#[derive(Clone, Debug)]
pub(super) struct Fetcher {
    pub(super) jetstream: jetstream::Context,
    pub(super) bytes_max: usize,
}

/// A message's reference to its payload.
struct Reference<'a> {
    bucket: &'a str,
    name: &'a str,
    bytes: usize,
    digest: &'a str,
}

/// The description of an object, as far as a reader needs it.
#[derive(Deserialize)]
struct Description {
    nuid: String,
}

/// Whether the payload of a message lies elsewhere.
pub(super) fn is_elsewhere(received: &Received) -> bool {
    received.payload.is_empty() && received.header_value("Oncebox-Object").is_some()
}

impl Fetcher {
    /// The message with its payload.
    pub(super) async fn fetch(&self, received: &Received) -> Result<Received, Trouble> {
        let reference = reference(received).ok_or_else(|| {
            Trouble::Wrong("the headers that name the object of the payload are incomplete".to_owned())
        })?;
        let Reference { bytes, digest, .. } = reference;
        if bytes > self.bytes_max {
            let limit = self.bytes_max;
            return Err(reference.wrong(&format!("has {bytes} bytes, and object_bytes_max allows {limit}")));
        }
        let payload = self.read(&reference).await?;
        let found = format!("SHA-256={}", BASE64_URL_SAFE.encode(Sha256::digest(&payload)));
        if payload.len() != bytes || found != digest {
            return Err(reference.wrong("is not the one that the message names"));
        }
        let mut whole = received.clone().with_payload(payload);
        whole.is_fetched = true;
        Ok(whole)
    }

    async fn read(&self, reference: &Reference<'_>) -> Result<Bytes, Trouble> {
        let Reference { bucket, name, bytes, .. } = reference;
        let stream = self.jetstream.get_stream_no_info(format!("OBJ_{bucket}")).await;
        let stream = stream.map_err(|error| Trouble::Away(text(&error)))?;
        let subject = format!("$O.{bucket}.M.{}", BASE64_URL_SAFE.encode(name));
        let described = answered(reference, stream.get_last_raw_message_by_subject(&subject)).await?;
        let Ok(Description { nuid }) = serde_json::from_slice(&described.payload) else {
            return Err(reference.wrong("has no readable description"));
        };
        let subject = format!("$O.{bucket}.C.{nuid}");
        let (mut payload, mut next) = (Vec::with_capacity(*bytes), 1);
        while payload.len() < *bytes {
            let chunk = answered(reference, stream.get_first_raw_message_by_subject(&subject, next)).await?;
            if chunk.payload.is_empty() {
                break;
            }
            payload.extend_from_slice(&chunk.payload);
            next = chunk.sequence + 1;
        }
        Ok(payload.into())
    }
}

impl Reference<'_> {
    fn wrong(&self, problem: &str) -> Trouble {
        Trouble::Wrong(format!("object {}/{} {problem}", self.bucket, self.name))
    }
}

async fn answered(
    reference: &Reference<'_>,
    asking: impl Future<Output = Result<StreamMessage, RawMessageError>>,
) -> Result<StreamMessage, Trouble> {
    let answer = timeout(ANSWER_WITHIN, asking).await;
    answer.map_err(|elapsed| Trouble::Away(elapsed.to_string()))?.map_err(|error| match error.kind() {
        RawMessageErrorKind::NoMessageFound => reference.wrong("is not there, or not all of it"),
        RawMessageErrorKind::JetStream(refused) if refused.error_code() == ErrorCode::STREAM_NOT_FOUND => {
            Trouble::Wrong(format!("there is no bucket {}", reference.bucket))
        }
        _ => Trouble::Away(text(&error)),
    })
}

fn reference(received: &Received) -> Option<Reference<'_>> {
    let (bucket, name) = received.header_value("Oncebox-Object")?.split_once('/')?;
    let bytes = received.header_value("Oncebox-Object-Bytes")?.parse().ok()?;
    let digest = received.header_value("Oncebox-Object-Digest")?;
    let is_bucket = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || !bucket.chars().all(is_bucket) {
        return None;
    }
    Some(Reference { bucket, name, bytes, digest })
}
