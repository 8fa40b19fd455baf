//! Messages that must not be sent before a time: enqueue, list, cancel.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer};

use crate::{Error, Key, OpenTransaction, Outbox, outbox::Ask as _};

/// A message that waits for its time.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Delayed {
    /// Its key.
    pub key: String,
    /// Its subject.
    pub subject: String,
    /// Its ordering key.
    pub ordering_key: Option<String>,
    /// When it is due.
    #[serde(deserialize_with = "of_microseconds")]
    pub not_before: SystemTime,
    /// When it was enqueued.
    #[serde(deserialize_with = "of_microseconds")]
    pub created_at: SystemTime,
}

impl Outbox {
    /// Gives a delayed message up: when `transaction` commits, it will never be sent. `false` when
    /// no message of this key is delayed: it was never enqueued, was cancelled, or is in the log,
    /// and perhaps sent, since its time came.
    ///
    /// # Errors
    /// See [`Error`]; roll the transaction back.
    pub async fn cancel_delayed<D>(
        &self,
        transaction: impl OpenTransaction<D>,
        key: &Key,
    ) -> Result<bool, Error> {
        let answer = transaction.asked().text(self, &self.statements().cancel_delayed, key, None).await?;
        Ok(answer == "true")
    }

    /// The delayed message with this key, and those of the steps below it, in the order of their
    /// keys: `most` of them, 10,000 at most.
    ///
    /// # Errors
    /// See [`Error`]; roll the transaction back.
    pub async fn list_delayed<D>(
        &self,
        transaction: impl OpenTransaction<D>,
        key: &Key,
        most: u16,
    ) -> Result<Vec<Delayed>, Error> {
        let listed = &self.statements().list_delayed;
        let answer = transaction.asked().text(self, listed, key, Some(i64::from(most))).await?;
        serde_json::from_str(&answer).map_err(|source| {
            let problem = format!("the list of delayed messages does not decode: {source}");
            Error::Invalid { problem, source: Some(source.into()) }
        })
    }
}

fn of_microseconds<'de, F: Deserializer<'de>>(from: F) -> Result<SystemTime, F::Error> {
    let since = i64::deserialize(from)?;
    let distance = Duration::from_micros(since.unsigned_abs());
    let time = if since < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) };
    time.ok_or_else(|| serde::de::Error::custom("a time that this system does not know"))
}
