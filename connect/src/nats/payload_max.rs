//! The largest payload that the account takes, which may be less than the server takes.
//!
//! The server tells an account's limit in a second INFO, which async-nats ignores, and cuts the
//! connection of a client that sends more, with all that is under way on it. So the limit is found
//! by trying: messages of more and more exact sizes go to a subject without a subscriber, over
//! connections of their own. The server checks the size first, so a user who may not publish there
//! gets an answer as well.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use futures_util::StreamExt as _;
use tokio::time::timeout;

use super::connection::{Connection, PROBE, Server, TOO_LARGE};

/// The largest size that is tried: nothing larger is published.
const TRIED_MAX: usize = 8 * 1024 * 1024;
/// For the answer to one of them.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// For all of them.
const FIND_MAX: Duration = Duration::from_secs(60);
/// The server's word may be lost when it cuts a connection; this number of cuts in a row at one
/// size is proof too.
const CUTS: usize = 3;

/// The server's reaction to a message of a size.
#[derive(Debug, PartialEq, Eq)]
enum Reaction {
    Fits,
    TooLarge,
    /// The connection ended without a word.
    Cut,
}

impl Connection {
    /// A message of more bytes, headers included, ends the connection, as far as is known.
    #[must_use]
    pub fn payload_max(&self) -> usize {
        self.client.max_payload().min(self.server.payload_max.load(Relaxed))
    }

    /// The server has cut the connection because of a message's size.
    #[must_use]
    pub fn was_too_large(&self) -> bool {
        self.reason.get().is_some_and(|reason| reason == TOO_LARGE)
    }

    /// Whether the account takes more than was found; then the limit is forgotten.
    pub(super) async fn account_takes_more(&self, than: usize) -> bool {
        let limit = &self.server.payload_max;
        if limit.load(Relaxed) > than {
            return true;
        }
        let takes_more = self.reaction(than.saturating_add(1)).await == Ok(Reaction::Fits);
        if takes_more {
            limit.store(usize::MAX, Relaxed);
        }
        takes_more
    }

    async fn reaction(&self, bytes: usize) -> Result<Reaction, String> {
        let inbox = self.client.new_inbox();
        let subject = format!("{inbox}{PROBE}");
        let mut denied = self.denied.subscribe();
        let mut answers = self.client.subscribe(inbox.clone()).await.map_err(|error| error.to_string())?;
        let payload = vec![b' '; bytes].into();
        let sent = self.client.publish_with_reply(subject.clone(), inbox, payload).await;
        sent.map_err(|error| error.to_string())?;
        let denial = async { while denied.recv().await.is_ok_and(|named| *named != *subject) {} };
        let answer = async {
            tokio::select! {
                () = self.over.cancelled() => false,
                // "No responders".
                answer = answers.next() => answer.is_some(),
                () = denial => true,
            }
        };
        let silence = |_| "NATS does not answer a message of this size".to_owned();
        Ok(match timeout(ANSWER_MAX, answer).await.map_err(silence)? {
            true => Reaction::Fits,
            false if self.was_too_large() => Reaction::TooLarge,
            false => Reaction::Cut,
        })
    }
}

impl Server {
    /// Finds the limit of the account, and keeps to it from then on; `None` when it is not below
    /// the server's, or 8 MiB.
    ///
    /// # Errors
    /// NATS went away, or did not answer: the known limit stays.
    pub async fn find_payload_max(&self) -> Result<Option<usize>, String> {
        let found = timeout(FIND_MAX, self.search()).await;
        let found = found.map_err(|_| "the account's max_payload was not found in time".to_owned())??;
        self.payload_max.store(found.unwrap_or(usize::MAX), Relaxed);
        Ok(found)
    }

    async fn search(&self) -> Result<Option<usize>, String> {
        let connect = async || self.connect(|| ()).await.map_err(|error| error.to_string());
        let mut connection = connect().await?;
        let all = connection.client.max_payload().min(TRIED_MAX);
        // The first size that is tried is all that the server takes: mostly it fits.
        let (mut fits, mut exceeds, mut cuts) = (0, all + 1, 0);
        let mut bytes = all;
        while exceeds - fits > 1 {
            match connection.reaction(bytes).await? {
                Reaction::Fits => (fits, cuts) = (bytes, 0),
                Reaction::Cut if cuts + 1 < CUTS => cuts += 1,
                Reaction::TooLarge | Reaction::Cut => (exceeds, cuts) = (bytes, 0),
            }
            if connection.over.is_cancelled() {
                connection = connect().await?;
            }
            if cuts == 0 {
                bytes = fits + (exceeds - fits) / 2;
            }
        }
        Ok(Some(fits).filter(|fits| *fits < all))
    }
}
