//! Reads a stream from one sequence to another, page by page, as its leader has it.
//!
//! Each message is asked for by its sequence: that leaves no trace (a consumer would give a stream
//! with retention by interest an interest, and a work queue takes only one), it works alike for
//! every retention and on every server, and the leader answers, not a replica that may lag.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::{Duration, SystemTime},
};

use async_nats::jetstream::{
    Context,
    message::StreamMessage,
    stream::{DiscardPolicy, RetentionPolicy},
};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use oncebox_connect::{
    config::Config,
    error::RelayError,
    nats::{Connection, QUESTION_TIMEOUT, Server, answer_max, message_max, stream_info, unless_denied},
};
use oncebox_relay::facts::has_object;
use tokio::time::sleep;

use super::absence::LettingGo;
use crate::{
    Result,
    stored::{Question, stored},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Questions under way at once, at most,
const CONCURRENT: usize = 128;
/// and the bytes that their answers may have together: half of the bytes that a server lets wait
/// for a connection.
const ANSWERS_MAX: usize = 32 * 1024 * 1024;
/// Sequences in a page, at most.
const PAGE: u64 = 1_024;
/// Once a page has this number of bytes of payload, nothing more is asked for.
const PAGE_BYTES: usize = 16 * 1024 * 1024;
/// One question in millions may stay without an answer.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(500);
/// Every subject.
const ALL: &str = ">";

/// A stream, as it was when the reader was made.
#[derive(Debug)]
pub(crate) struct Reader {
    connection: Connection,
    context: Context,
    name: String,
    /// The sequence of the first message; one above the last where there is none.
    pub(crate) first: u64,
    /// The last sequence that was given out.
    pub(crate) last: u64,
    pub(crate) subjects: Vec<String>,
    pub(crate) lets_go: LettingGo,
    /// It stores messages under other subjects than those they are published to.
    pub(crate) maps_subjects: bool,
    concurrent: usize,
}

impl Reader {
    /// # Errors
    /// NATS cannot be reached, does not let us in, or has no such stream.
    pub(crate) async fn connect(config: &Config, name: &str, command: &str) -> Result<Self> {
        let connection = Server::connect_once(config, command, CONNECT_TIMEOUT).await?;
        let failed = |problem| RelayError::Verify { stream: name.to_owned(), problem };
        let found = stream_info(&connection, name).await.map_err(failed)?;
        let found = found.ok_or_else(|| failed("there is no such stream".to_owned()))?;
        let (context, name) = connection.jetstream_of(name, QUESTION_TIMEOUT);
        let (config, state) = (&found.config, &found.state);
        let drops_old = config.discard == DiscardPolicy::Old;
        let drops_oldest = drops_old && (config.max_messages > 0 || config.max_bytes > 0);
        let may_shrink = !config.max_age.is_zero() || drops_oldest;
        // Of an empty stream that had messages all may be too old.
        let oldest = if state.messages > 0 { state.first_timestamp } else { state.last_timestamp };
        let lets_go = LettingGo {
            consumed: config.retention != RetentionPolicy::Limits || config.allow_rollup,
            of_subjects: config.max_messages_per_subject > 0
                && !(config.discard == DiscardPolicy::New && config.discard_new_per_subject),
            before: (may_shrink && state.first_sequence > 1).then(|| oldest.into()),
        };
        let concurrent = (ANSWERS_MAX / answer_max(message_max(&connection, &found))).clamp(1, CONCURRENT);
        Ok(Self {
            connection,
            name: name.to_owned(),
            context,
            first: state.first_sequence.max(1),
            last: state.last_sequence,
            subjects: config.subjects.clone(),
            lets_go,
            maps_subjects: config.subject_transform.is_some(),
            concurrent,
        })
    }

    /// The messages from a sequence on, some of them, and the sequence to go on with; `None` at the
    /// end.
    pub(crate) async fn page(&self, from: u64) -> Result<(Vec<StreamMessage>, Option<u64>), String> {
        let to = self.last.min(from.saturating_add(PAGE - 1));
        let (next, bytes) = (AtomicU64::new(from), AtomicUsize::new(0));
        let asked = (from..=to)
            .take_while(|_| bytes.load(Ordering::Relaxed) < PAGE_BYTES)
            .inspect(|sequence| next.store(sequence + 1, Ordering::Relaxed));
        let read = stream::iter(asked).map(|sequence| self.at(sequence)).buffered(self.concurrent);
        let read = read.inspect_ok(|message| {
            let length = message.as_ref().map_or(0, |message| message.payload.len());
            bytes.fetch_add(length, Ordering::Relaxed);
        });
        let messages: Vec<Option<StreamMessage>> =
            unless_denied(&self.connection, read.try_collect()).await?;
        let messages: Vec<StreamMessage> = messages.into_iter().flatten().collect();
        let mut next = next.into_inner();
        // A wide hole is jumped over.
        if messages.is_empty() && next <= self.last {
            match self.next(next).await? {
                Some(message) => next = message.sequence,
                None => return Ok((messages, None)),
            }
        }
        Ok((messages, (next <= self.last).then_some(next)))
    }

    /// The sequence of the first message that was stored at a time or later.
    pub(crate) async fn seek(&self, time: SystemTime) -> Result<u64, String> {
        let (mut low, mut high) = (self.first, self.last.saturating_add(1));
        while low < high {
            let middle = low + (high - low) / 2;
            match self.next(middle).await? {
                Some(message) if SystemTime::from(message.time) < time => low = message.sequence + 1,
                _ => high = middle,
            }
        }
        Ok(low)
    }

    /// When the last message of a subject was stored.
    pub(crate) async fn last_of_subject(&self, subject: &str) -> Result<Option<SystemTime>, String> {
        let last = self.stored(Question::Last { last_by_subj: subject });
        let last = unless_denied(&self.connection, last).await?;
        Ok(last.map(|message| message.time.into()))
    }

    /// Whether the object that is the payload of a message is there.
    pub(crate) async fn has_object(&self, object: &[String; 3]) -> Result<bool, String> {
        unless_denied(&self.connection, has_object(&self.connection, object, QUESTION_TIMEOUT)).await
    }

    async fn at(&self, sequence: u64) -> Result<Option<StreamMessage>, String> {
        let asked = self.stored(Question::At { seq: sequence }).await;
        asked.map_err(|problem| format!("read sequence {sequence}: {problem}"))
    }

    async fn next(&self, sequence: u64) -> Result<Option<StreamMessage>, String> {
        let asking = self.stored(Question::Next { seq: sequence, next_by_subj: ALL });
        unless_denied(&self.connection, asking).await
    }

    async fn stored(&self, question: Question<'_>) -> Result<Option<StreamMessage>, String> {
        let mut failures = 0;
        loop {
            match stored(&self.context, &self.name, question).await {
                Ok(answer) => return Ok(answer),
                Err(problem) if failures + 1 == ATTEMPTS => return Err(problem),
                Err(_) => failures += 1,
            }
            sleep(PAUSE).await;
        }
    }
}
