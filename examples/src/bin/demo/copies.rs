//! Reads the stream, and publishes copies of some messages on purpose, as a careless replay would.

use std::{collections::HashSet, time::Duration};

use anyhow::{Context, Result};
use async_nats::jetstream::{
    self,
    message::StreamMessage,
    stream::{RawMessageErrorKind, Stream},
};
use tokio::time::{Instant, sleep, timeout};

use crate::clients::Progress;

const KEY: &str = "Idempotency-Key";
const ID: &str = "Nats-Msg-Id";
// Of twenty messages two are copied: one at once, and one after all messages are in the stream.
const EVERY: usize = 20;
const COPIED_AT_ONCE: usize = 3;
const COPIED_LATE: usize = 13;

const NATS_AWAY_LIMIT: Duration = Duration::from_secs(30);
const STANDSTILL_LIMIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(50);

/// The messages of a subject in the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) messages: usize,
    pub(crate) keys: usize,
}

/// Reads a subject of the stream from its beginning, message by message. It goes on after a restart
/// of nats-server.
#[derive(Debug)]
pub(crate) struct Follower {
    jetstream: jetstream::Context,
    stream: Stream,
    subject: String,
    // The stream's sequence number from which to look for the next message.
    next: u64,
    keys: HashSet<String>,
    messages: usize,
}

impl Follower {
    pub(crate) async fn new(jetstream: jetstream::Context, stream: &str, subject: &str) -> Result<Self> {
        let stream = jetstream.get_stream(stream).await.context("find the stream")?;
        let subject = subject.to_owned();
        Ok(Self { jetstream, stream, subject, next: 1, keys: HashSet::new(), messages: 0 })
    }

    /// Reads on to the present end of the stream.
    pub(crate) async fn read(&mut self) -> Result<Stored> {
        while self.next_message().await?.is_some() {}
        Ok(Stored { messages: self.messages, keys: self.keys.len() })
    }

    /// The next message, and whether it is the first with its key; `None` at the present end of the
    /// stream.
    async fn next_message(&mut self) -> Result<Option<(StreamMessage, bool)>> {
        let (stream, subject, next) = (&self.stream, &self.subject, self.next);
        let found =
            despite_restarts(async || match stream.get_first_raw_message_by_subject(subject, next).await {
                Ok(message) => Ok(Some(message)),
                Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
                Err(error) => Err(error.into()),
            })
            .await
            .context("read the stream")?;
        let Some(message) = found else { return Ok(None) };
        let key = message.headers.get(KEY).context("a message without a key is in the stream")?.to_string();
        self.next = message.sequence + 1;
        self.messages += 1;
        let is_first = self.keys.insert(key);
        Ok(Some((message, is_first)))
    }
}

/// Publishes a tenth of the messages once more: half of them at once, and half of them after all
/// messages are in the stream. Returns how many copies it made. `expected` returns how many keys
/// there will be, once that is known.
///
/// The copies have another `Nats-Msg-Id`, else the stream would drop them, and the same
/// `Idempotency-Key`. When the stream has lost its last messages, this starts from the beginning:
/// the stream drops the copies that it still has.
pub(crate) async fn republish(
    mut follower: Follower,
    progress: &Progress,
    expected: impl Fn() -> Option<usize>,
) -> Result<usize> {
    let (mut copies, mut late, mut seen) = (0, Vec::new(), 0);
    let mut since = Instant::now();
    loop {
        let losses = progress.losses.lock().await;
        if *losses > seen {
            (follower.next, follower.messages, copies, seen) = (1, 0, 0, *losses);
            follower.keys.clear();
            late.clear();
        }
        match follower.next_message().await? {
            Some((_, false)) => since = Instant::now(),
            Some((message, true)) => {
                since = Instant::now();
                match follower.keys.len() % EVERY {
                    COPIED_AT_ONCE => {
                        publish_copy(&follower, &message).await?;
                        copies += 1;
                    }
                    COPIED_LATE => late.push(message),
                    _ => {}
                }
            }
            None if expected().is_some_and(|expected| follower.keys.len() >= expected) => break,
            // The missing messages will be counted as lost.
            None if expected().is_some() && since.elapsed() > STANDSTILL_LIMIT => break,
            None => {
                drop(losses);
                sleep(PAUSE).await;
            }
        }
    }
    for message in &late {
        publish_copy(&follower, message).await?;
    }
    Ok(copies + late.len())
}

async fn publish_copy(follower: &Follower, original: &StreamMessage) -> Result<()> {
    let mut headers = original.headers.clone();
    let key = headers.get(KEY).map(ToString::to_string).unwrap_or_default();
    headers.insert(ID, format!("copy/{key}"));
    despite_restarts(async || {
        let (subject, headers) = (follower.subject.clone(), headers.clone());
        let stored = follower.jetstream.publish_with_headers(subject, headers, original.payload.clone());
        stored.await?.await?;
        Ok(())
    })
    .await
    .context("publish a copy")
}

/// Tries again for a while, since nats-server is restarted during the demo.
async fn despite_restarts<T>(mut attempt: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + NATS_AWAY_LIMIT;
    loop {
        match timeout(NATS_AWAY_LIMIT, attempt()).await.context("wait for nats-server")? {
            Ok(done) => return Ok(done),
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => sleep(PAUSE).await,
        }
    }
}
