//! Payloads that lie in a bucket of the NATS Object Store: they are fetched, and checked, before
//! the inbox sees the message.

use std::time::Duration;

use async_nats::jetstream::{
    self,
    context::GetStreamErrorKind,
    object_store::{Object, ObjectInfo},
    stream::{LastRawMessageErrorKind, Stream},
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE};
use bytes::Bytes;
use futures_util::TryStreamExt as _;
use oncebox_claims::failure::text;
use sha2::{Digest as _, Sha256};
use tokio::{io::AsyncReadExt as _, time::timeout};

use crate::Received;

/// For a question to JetStream, and between two parts of an object.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const PART: usize = 256 * 1024;

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

/// Whether the payload of a message lies elsewhere.
pub(super) fn is_elsewhere(received: &Received) -> bool {
    received.header_value("Oncebox-Object").is_some() && received.payload.is_empty()
}

impl Fetcher {
    /// The message with its payload.
    pub(super) async fn fetch(&self, received: &Received) -> Result<Received, Trouble> {
        let reference = reference(received).ok_or_else(|| {
            Trouble::Wrong("the headers that name the object of the payload are incomplete".to_owned())
        })?;
        let Reference { bucket, name, bytes, .. } = reference;
        if bytes > self.bytes_max {
            let limit = self.bytes_max;
            return Err(Trouble::Wrong(format!(
                "object {bucket}/{name} has {bytes} bytes, and object_bytes_max allows {limit}"
            )));
        }
        let stream = self.stream(bucket).await?;
        let info = described(&stream, &reference).await?;
        let mut object = self.open(&reference, &info).await?;
        let payload = read(&mut object, &reference).await?;
        Ok(received.clone().with_payload(payload))
    }

    async fn stream(&self, bucket: &str) -> Result<Stream, Trouble> {
        match self.jetstream.get_stream(format!("OBJ_{bucket}")).await {
            Ok(stream) => Ok(stream),
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(refused)
                    if refused.error_code() == jetstream::ErrorCode::STREAM_NOT_FOUND =>
                {
                    Err(Trouble::Wrong(format!("there is no bucket {bucket}")))
                }
                _ => Err(Trouble::Away(text(&error))),
            },
        }
    }

    async fn open(&self, reference: &Reference<'_>, info: &ObjectInfo) -> Result<Object, Trouble> {
        let opening = async {
            let bucket = self.jetstream.get_object_store(reference.bucket).await.map_err(|e| text(&e))?;
            bucket.get(&info.name).await.map_err(|error| text(&error))
        };
        match timeout(ANSWER_WITHIN, opening).await {
            Ok(Ok(object)) => Ok(object),
            Ok(Err(reason)) => Err(Trouble::Away(reason)),
            Err(elapsed) => Err(Trouble::Away(elapsed.to_string())),
        }
    }
}

/// The object's description, when it fits the reference and all chunks are there: a reader would
/// wait for one that is missing.
async fn described(stream: &Stream, reference: &Reference<'_>) -> Result<ObjectInfo, Trouble> {
    let Reference { bucket, name, bytes, .. } = reference;
    let wrong = |problem: &str| Trouble::Wrong(format!("object {bucket}/{name} {problem}"));
    let subject = format!("$O.{bucket}.M.{}", BASE64_URL_SAFE.encode(name));
    let last = match stream.get_last_raw_message_by_subject(&subject).await {
        Ok(last) => last,
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => {
            return Err(wrong("is not there"));
        }
        Err(error) => return Err(Trouble::Away(text(&error))),
    };
    let info: ObjectInfo =
        serde_json::from_slice(&last.payload).map_err(|_| wrong("has no readable description"))?;
    if info.deleted {
        return Err(wrong("is deleted"));
    }
    if info.size != *bytes {
        return Err(wrong(&format!("has {} bytes, and the message names {bytes}", info.size)));
    }
    let chunks = format!("$O.{bucket}.C.{}", info.nuid);
    let counting = async {
        let subjects = stream.info_with_subjects(&chunks).await.map_err(|error| text(&error))?;
        let counts: Vec<(String, usize)> = subjects.try_collect().await.map_err(|error| text(&error))?;
        Ok(counts.iter().map(|(_, count)| count).sum::<usize>())
    };
    if counting.await.map_err(Trouble::Away)? != info.chunks {
        return Err(wrong("has lost some of its chunks"));
    }
    Ok(info)
}

async fn read(object: &mut Object, reference: &Reference<'_>) -> Result<Bytes, Trouble> {
    let Reference { bucket, name, bytes, digest } = reference;
    let mut payload = Vec::with_capacity(*bytes);
    let mut part = vec![0; PART];
    while payload.len() < *bytes {
        match timeout(ANSWER_WITHIN, object.read(&mut part)).await {
            Ok(Ok(0)) => break,
            Ok(Ok(count)) => payload.extend_from_slice(&part[..count]),
            // The client of NATS compares the digest of the description.
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::InvalidData => break,
            Ok(Err(error)) => return Err(Trouble::Away(text(&error))),
            Err(elapsed) => return Err(Trouble::Away(elapsed.to_string())),
        }
    }
    let found = format!("SHA-256={}", BASE64_URL_SAFE.encode(Sha256::digest(&payload)));
    match payload.len() == *bytes && found == **digest {
        true => Ok(payload.into()),
        false => Err(Trouble::Wrong(format!("object {bucket}/{name} is not the one that the message names"))),
    }
}

fn reference(received: &Received) -> Option<Reference<'_>> {
    let (bucket, name) = received.header_value("Oncebox-Object")?.split_once('/')?;
    let bytes = received.header_value("Oncebox-Object-Bytes")?.parse().ok()?;
    let digest = received.header_value("Oncebox-Object-Digest")?;
    Some(Reference { bucket, name, bytes, digest })
}
