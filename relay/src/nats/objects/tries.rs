//! The end of a try to put an object: its description, which only one of several tries stores, and
//! the removal of chunks; and JetStream's answer about the bucket.

use std::collections::HashMap;

use async_nats::{
    HeaderMap,
    jetstream::{
        self,
        context::{PublishError, PublishErrorKind},
    },
};
use serde::{Deserialize, Serialize};

use super::{Bucket, Trouble};
use crate::{clock::with_text, delivery::Message, error::error_chain};

impl Bucket<'_> {
    /// Marks an object that is not whole as deleted: none of the tries that have begun can describe
    /// it any more, and their chunks go.
    pub(super) async fn give_up_tries(
        &self,
        name: &str,
        message: &Message,
        replaced: u64,
    ) -> Result<u64, Trouble> {
        let description = Description { deleted: true, ..self.described(name, message) };
        let sequence = self.describe(&description, replaced).await.map_err(|error| self.trouble(&error))?;
        self.remove(format!("$O.{}.C.{name}.>", self.name), Some(sequence)).await;
        Ok(sequence)
    }

    /// A description without chunks.
    pub(super) fn described(&self, name: &str, message: &Message) -> Description {
        Description {
            name: name.to_owned(),
            bucket: self.name.to_owned(),
            nuid: String::new(),
            size: 0,
            chunks: 0,
            digest: String::new(),
            mtime: humantime::format_rfc3339_micros(with_text(message.created_at)).to_string(),
            deleted: false,
        }
    }

    /// Stores a description in place of the one at `replaced`; returns its sequence.
    pub(super) async fn describe(
        &self,
        description: &Description,
        replaced: u64,
    ) -> Result<u64, PublishError> {
        let body = serde_json::to_vec(description).expect("texts and numbers have a JSON form");
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Rollup", "sub");
        headers.insert("Nats-Expected-Last-Subject-Sequence", replaced.to_string().as_str());
        let subject = self.description_subject(&description.name);
        Ok(self.context.publish_with_headers(subject, headers, body.into()).await?.await?.sequence)
    }

    /// Removes chunks, if a sequence is given those before it; if it cannot, they stay as long as
    /// the bucket keeps them. Sequence 1 has none before it, and nats-server 2.9 would take it for
    /// "all".
    pub(super) async fn remove(&self, chunks: String, before: Option<u64>) {
        if before.is_some_and(|before| before <= 1) {
            return;
        }
        let Ok(stream) = self.context.get_stream_no_info(&self.stream).await else { return };
        let purge = stream.purge().filter(chunks);
        let purged = match before {
            Some(before) => purge.sequence(before).await,
            None => purge.await,
        };
        if let Err(error) = purged {
            tracing::debug!(error = error_chain(&error), "remove the chunks of a try");
        }
    }
}

/// Another description was stored meanwhile: it is certain that this one is not.
pub(super) fn is_overtaken(error: &PublishError) -> bool {
    /// As nats-server 2.12 says it of a message that is still on its way.
    const CONSTANT: u64 = 10_164;
    let refused =
        std::error::Error::source(error).and_then(|source| source.downcast_ref::<jetstream::Error>());
    error.kind() == PublishErrorKind::WrongLastSequence
        || refused.is_some_and(|refused| refused.error_code().0 == CONSTANT)
}

/// The description of an object, as the Object Store has it.
#[derive(Deserialize, Serialize)]
pub(super) struct Description {
    pub(super) name: String,
    pub(super) bucket: String,
    pub(super) nuid: String,
    pub(super) size: usize,
    pub(super) chunks: usize,
    pub(super) digest: String,
    pub(super) mtime: String,
    #[serde(default)]
    pub(super) deleted: bool,
}

/// The part of JetStream's answer about the bucket that says whether an object is whole, and old.
#[derive(Deserialize)]
pub(super) struct Info {
    pub(super) config: BucketConfig,
    pub(super) state: BucketState,
    /// The server's clock; from nats-server 2.10 on.
    pub(super) ts: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct BucketConfig {
    /// Nanoseconds.
    #[serde(default)]
    pub(super) max_age: u64,
}

#[derive(Deserialize)]
pub(super) struct BucketState {
    pub(super) subjects: Option<HashMap<String, usize>>,
}
