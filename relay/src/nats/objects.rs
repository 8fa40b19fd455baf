//! Puts large payloads into a bucket of the NATS Object Store, piece by piece: the relay never
//! holds one whole.
//!
//! An object is named after its row, so another try after a crash finds the first one, or replaces
//! it. Its chunks lie below the name, each try under a subject of its own. Two relays may put the
//! same object, when one was suspended and its lanes went to another:
//!
//! - The description of the object, which comes last, names the description that it replaces. So of
//!   several tries that began alike one is described, and the others remove their own chunks.
//! - A try removes chunks of others only after its description is stored: none of them can be
//!   described any more.
//!
//! The bucket may be shared, and others may write to it. So an object that is found is compared
//! with the row before a message refers to it; and one that has spent half of the bucket's
//! `max_age` is put again, since the message that is about to refer to it may have all of its own.

mod tries;

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use async_nats::jetstream::{
    self, ErrorCode,
    context::{PublishError, PublishErrorKind},
    response::Response,
    stream::LastRawMessageErrorKind,
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE};
use bytes::Bytes;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use oncebox_connect::nats::Connection;

use self::tries::{Description, Info, is_overtaken};
use crate::{
    delivery::{Failure, Message, Object},
    error::error_chain,
    postgres::Session,
};

/// Bytes of a chunk, as the clients of NATS choose them; fewer with a smaller `max_payload`.
const CHUNK: usize = 128 * 1024;
/// Room for the subject and the protocol beside a chunk.
const BESIDE: usize = 1024;
/// The most compared objects that are remembered; then they are compared anew.
const COMPARED_MAX: usize = 1024;

/// Objects that were found to be their rows' payloads, by their names, with the sequence of the
/// description: while that is the last one, another try need not read the payload.
pub(super) type Compared = HashMap<String, (u64, Object)>;

/// A bucket, on a connection.
pub(crate) struct Bucket<'a> {
    name: &'a str,
    stream: String,
    context: jetstream::Context,
    chunk: usize,
}

/// The last description below a name, and where it stands in the bucket.
struct Found {
    sequence: u64,
    stored_at: SystemTime,
    description: Description,
}

/// A payload of the log, as it was read.
struct Content {
    chunks: usize,
    /// The sequence of the first chunk, if they were stored.
    first: Option<u64>,
    digest: String,
    /// The `Nats-Msg-Id` of its row's message.
    id: String,
}

/// `None`: whether it was stored is unknown, and the next pass tries again.
type Trouble = Option<Failure>;

/// Whether the object that a message names is there, whole; not whether its chunks are the right
/// ones, for which all of them would have to be read.
///
/// # Errors
/// JetStream does not say.
pub async fn has_object(
    connection: &Connection,
    [bucket, name, digest]: &[String; 3],
    timeout: Duration,
) -> Result<bool, String> {
    let bucket = Bucket::new(connection, bucket, timeout);
    let whole = async {
        let (_, found) = bucket.find(name).await?;
        match found.filter(|found| found.description.digest.strip_prefix("SHA-256=") == Some(digest)) {
            Some(found) => bucket.is_fresh(&found).await.map(|whole| whole.is_some()),
            None => Ok(false),
        }
    };
    match whole.await {
        Ok(whole) => Ok(whole),
        Err(Some(Failure::Refused { err_code, .. })) if err_code == ErrorCode::STREAM_NOT_FOUND.0 => {
            Ok(false)
        }
        Err(Some(failure)) => Err(failure.to_string()),
        Err(None) => Err("JetStream does not answer".to_owned()),
    }
}

impl<'a> Bucket<'a> {
    pub(crate) fn new(connection: &Connection, name: &'a str, timeout: Duration) -> Self {
        let stream = format!("OBJ_{name}");
        let (context, _) = connection.jetstream_of(&stream, timeout);
        let chunk = CHUNK.min(connection.payload_max().saturating_sub(BESIDE)).max(1);
        Self { name, stream, context, chunk }
    }

    /// Puts these payloads. Those for which the time does not suffice are left to the next pass.
    pub(super) async fn put_all(
        &self,
        messages: Vec<&mut Message>,
        session: &Session,
        until: Instant,
        compared: &mut Compared,
    ) {
        // The bucket's refusal of one object would be the same for the next.
        let mut refused = None;
        for message in messages {
            message.payload = Bytes::new();
            if let Some(failure) = &refused {
                message.object = Some(Err(Failure::clone(failure)));
                continue;
            }
            if Instant::now() >= until {
                return;
            }
            match self.put(message, session, compared).await {
                Ok(object) => message.object = Some(Ok(object)),
                Err(None) => return,
                Err(Some(failure)) => {
                    message.object = Some(Err(failure.clone()));
                    refused = Some(failure).filter(|failure| !matches!(failure, Failure::BadHeader(_)));
                }
            }
        }
    }

    async fn put(
        &self,
        message: &Message,
        session: &Session,
        compared: &mut Compared,
    ) -> Result<Object, Trouble> {
        let name = message.object_name()?;
        let (replaced, found) = self.find(&name).await?;
        let known = compared.get(&name).filter(|(sequence, _)| *sequence == replaced).cloned();
        let mut is_whole = false;
        if let Some(found) = found.filter(|found| found.description.size == message.payload_bytes)
            && let Some(is_fresh) = self.is_fresh(&found).await?
        {
            is_whole = true;
            if let (true, Some((_, object))) = (is_fresh, known) {
                return Ok(object);
            }
            if is_fresh {
                let content = self.read(message, session, None).await?;
                if content.digest == found.description.digest {
                    return Ok(self.note(compared, found.sequence, name, content));
                }
            }
        }
        match self.store(message, session, &name, replaced).await {
            // Tries of relays that have died may fill the bucket.
            Err(Some(Failure::Refused { .. })) if !is_whole => {
                let replaced = self.give_up_tries(&name, message, replaced).await?;
                self.store(message, session, &name, replaced).await
            }
            stored => stored,
        }
        .map(|(sequence, content)| self.note(compared, sequence, name, content))
    }

    /// Stores the chunks of an object, then its description; returns the sequence of that.
    async fn store(
        &self,
        message: &Message,
        session: &Session,
        name: &str,
        replaced: u64,
    ) -> Result<(u64, Content), Trouble> {
        let nuid = format!("{name}.{}", self.unique());
        let subject = self.chunk_subject(&nuid);
        let content = match self.read(message, session, Some(&subject)).await {
            Ok(content) => content,
            Err(trouble) => {
                self.remove(subject, None).await;
                return Err(trouble);
            }
        };
        let description = Description {
            nuid,
            size: message.payload_bytes,
            chunks: content.chunks,
            digest: content.digest.clone(),
            ..self.described(name, message)
        };
        match self.describe(&description, replaced).await {
            Ok(sequence) => {
                if content.first.is_some() {
                    self.remove(format!("$O.{}.C.{name}.>", self.name), content.first).await;
                }
                Ok((sequence, content))
            }
            Err(error) => {
                if is_overtaken(&error) {
                    self.remove(subject, None).await;
                }
                Err(self.trouble(&error))
            }
        }
    }

    /// Remembers an object that is as its row.
    fn note(&self, compared: &mut Compared, sequence: u64, name: String, content: Content) -> Object {
        if compared.len() >= COMPARED_MAX {
            compared.clear();
        }
        let Content { digest, id, .. } = content;
        let object = Object { bucket: self.name.to_owned(), name, digest, id };
        compared.insert(object.name.clone(), (sequence, object.clone()));
        object
    }

    /// The description of an object, and its sequence in the bucket: 0 when there is none.
    async fn find(&self, name: &str) -> Result<(u64, Option<Found>), Trouble> {
        let stream = self.context.get_stream_no_info(&self.stream).await.map_err(|error| {
            tracing::debug!(error = error_chain(&error), "object store");
            None
        })?;
        match stream.get_last_raw_message_by_subject(&self.description_subject(name)).await {
            Ok(last) => {
                let description: Option<Description> = serde_json::from_slice(&last.payload).ok();
                let (sequence, stored_at) = (last.sequence, last.time.into());
                let found = description.filter(|description| !description.deleted);
                let found = found.map(|description| Found { sequence, stored_at, description });
                Ok((sequence, found))
            }
            Err(error) => match error.kind() {
                LastRawMessageErrorKind::NoMessageFound => Ok((0, None)),
                LastRawMessageErrorKind::JetStream(refused) => Err(Some(self.refused(&refused))),
                _ => Err(Some(self.silent())),
            },
        }
    }

    /// Whether an object has most of its life before it, by the server's clock; `None` if not all
    /// chunks are there.
    async fn is_fresh(&self, found: &Found) -> Result<Option<bool>, Trouble> {
        let subject = self.chunk_subject(&found.description.nuid);
        let question = json!({ "subjects_filter": subject });
        let asked = self.context.request(format!("STREAM.INFO.{}", self.stream), &question).await;
        let info: Info = match asked.map_err(|_| self.silent())? {
            Response::Ok(info) => info,
            Response::Err { error } => return Err(Some(self.refused(&error))),
        };
        let chunks = info.state.subjects.unwrap_or_default().get(&subject).copied().unwrap_or(0);
        // nats-server says its time from 2.10 on; this clock is right enough for half of a life.
        let now = info.ts.and_then(|now| humantime::parse_rfc3339(&now).ok());
        let age = now.unwrap_or_else(SystemTime::now).duration_since(found.stored_at).ok();
        let age_max = Duration::from_nanos(info.config.max_age);
        let is_fresh = age_max.is_zero() || age.unwrap_or_default() < age_max / 2;
        Ok(Some(is_fresh).filter(|_| chunks == found.description.chunks))
    }

    /// Reads a payload piece by piece, and stores the pieces as chunks, if there is a subject for
    /// them.
    async fn read(
        &self,
        message: &Message,
        session: &Session,
        subject: Option<&str>,
    ) -> Result<Content, Trouble> {
        let (mut chunks, mut digest, mut id) = (0, Sha256::new(), message.id_of_large()?);
        let (mut from, mut first) = (0, None);
        while from < message.payload_bytes {
            let piece = session.payload_piece(message, from).await.map_err(|_| None)?;
            if piece.is_empty() {
                return Err(None);
            }
            from += piece.len();
            digest.update(&piece);
            id.add(&piece);
            let Some(subject) = subject else { continue };
            let sequence = self.send_chunks(subject, &piece).await?;
            first.get_or_insert(sequence);
            chunks += piece.len().div_ceil(self.chunk);
        }
        let digest = format!("SHA-256={}", BASE64_URL_SAFE.encode(digest.finalize()));
        Ok(Content { chunks, first, digest, id: id.finish(message) })
    }

    /// Stores a piece, all chunks of it at once; returns the sequence of the first.
    async fn send_chunks(&self, subject: &str, piece: &Bytes) -> Result<u64, Trouble> {
        let mut sent = Vec::new();
        for from in (0..piece.len()).step_by(self.chunk) {
            let chunk = piece.slice(from..piece.len().min(from + self.chunk));
            let published = self.context.publish(subject.to_owned(), chunk).await;
            sent.push(published.map_err(|error| self.trouble(&error))?);
        }
        let mut first = None;
        for acknowledgement in sent {
            let sequence = acknowledgement.await.map_err(|error| self.trouble(&error))?.sequence;
            first.get_or_insert(sequence);
        }
        first.ok_or(None)
    }

    /// A token that no other try has.
    fn unique(&self) -> String {
        let inbox = self.context.client().new_inbox();
        inbox.rsplit('.').next().unwrap_or_default().to_owned()
    }

    fn description_subject(&self, name: &str) -> String {
        format!("$O.{}.M.{}", self.name, BASE64_URL_SAFE.encode(name))
    }

    fn chunk_subject(&self, nuid: &str) -> String {
        format!("$O.{}.C.{nuid}", self.name)
    }

    fn trouble(&self, error: &PublishError) -> Trouble {
        match error.kind() {
            PublishErrorKind::StreamNotFound => Some(self.missing()),
            PublishErrorKind::TimedOut => Some(self.silent()),
            PublishErrorKind::Other => {
                let refused = std::error::Error::source(error)
                    .and_then(|source| source.downcast_ref::<jetstream::Error>())?;
                Some(self.refused(refused))
            }
            // Another relay was faster, or the connection is gone: the next pass finds out.
            _ => None,
        }
    }

    fn refused(&self, error: &jetstream::Error) -> Failure {
        if error.error_code() == ErrorCode::STREAM_NOT_FOUND {
            return self.missing();
        }
        Failure::Refused {
            err_code: error.error_code().0,
            description: format!("object store {}: {error}", self.name),
            stream: Some(self.stream.clone()),
        }
    }

    fn missing(&self) -> Failure {
        let description = format!("object store {}: there is no such bucket", self.name);
        Failure::Refused {
            err_code: ErrorCode::STREAM_NOT_FOUND.0,
            description,
            stream: Some(self.stream.clone()),
        }
    }

    fn silent(&self) -> Failure {
        Failure::Silent { stream: Some(self.stream.clone()) }
    }
}
