//! Atomic batches: of the messages of one batch, a stream stores all in their order, or none.
//!
//! Only the last message of a batch is answered, with its sequence; those of the others lie right
//! below it. So messages of one ordering key need not wait for each other's acknowledgements, and
//! where an acknowledgement waits for the disk, a whole batch waits once.
//!
//! | a batch | known | next |
//! |---|---|---|
//! | is committed: the answer has its id and its count | all are stored, and where | the next batch |
//! | is refused: an id that the stream knows, a limit, a gap, no room | none is stored | each is published by itself, and has an answer of its own |
//! | is not answered | nothing | each is published by itself: what is stored is answered as a duplicate |
//! | breaks off with the connection | nothing; half a batch is never visible | the next pass publishes all again |
//!
//! Batches come first in a pass, and what is not stored by one goes the ordinary way after them. A
//! message whose ordering key has an earlier one that is not stored yet is in no batch. A batch
//! that an old connection commits late cannot disturb that order: once one of its messages is
//! stored, the stream refuses all of it.

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_nats::{HeaderMap, StatusCode, header::HeaderName};
use futures_util::StreamExt as _;
use tokio::time::{Instant, sleep_until, timeout};

use super::{
    Publisher,
    answer::{Ack, parse_atomic, parse_commit},
    batch::Batch,
    questions::Reply,
    window::Window,
    wire_headers,
};
use crate::{
    config::Limits,
    delivery::{decision::Failure, message::Message, outcome::Outcome, subjects::covers},
    nats::{connection::STREAM_INFO, silence::Known},
};

/// Messages of one batch at most; nats-server takes so many unless it is configured otherwise.
const MESSAGES_MAX: usize = 1_000;
/// How often a stream is asked whether it allows batches.
const ASK_EVERY: Duration = Duration::from_secs(60);
/// What a batch adds to the headers of a message, in bytes, at most.
const HEADERS_MAX: usize = 128;
/// After a refusal: what a batch is refused for often holds for the next one too.
const PAUSE: Duration = Duration::from_secs(1);

/// A stream that is to get its messages in atomic batches.
#[derive(Debug)]
pub(super) struct AtomicStream {
    name: String,
    /// What it takes; nothing while it allows no batches.
    subjects: Arc<[String]>,
    ask_at: Instant,
    /// Until then its messages are published one by one.
    rests_until: Instant,
    messages_max: usize,
}

impl AtomicStream {
    pub(super) fn new(name: &str) -> Self {
        let now = Instant::now();
        let subjects = Arc::default();
        Self { name: name.to_owned(), subjects, ask_at: now, rests_until: now, messages_max: MESSAGES_MAX }
    }

    fn is_ready(&self, now: Instant) -> bool {
        !self.subjects.is_empty() && self.rests_until <= now
    }

    /// No batch for a while; smaller ones then where the server is set to take less.
    fn rest(&mut self, failure: &Failure, messages: usize) {
        match failure {
            Failure::Refused { err_code: 10199, .. } => self.messages_max = (messages / 2).max(2),
            Failure::Refused { .. } | Failure::Denied { .. } | Failure::NoResponders => {}
            // Silence, or an answer that says nothing: it is asked before the next batch.
            _ => self.subjects = Arc::default(),
        }
        self.rests_until = Instant::now() + PAUSE;
        tracing::debug!(stream = self.name, ?failure, "the batch is not stored; its messages go one by one");
    }
}

/// The messages of a pass that may go to a stream in batches, in their order.
struct Queue<'a> {
    messages: &'a [Message],
    /// The next one to look at.
    at: usize,
    /// Ordering keys with an earlier message that is not stored and in no batch.
    held: HashSet<(i16, &'a str)>,
}

impl<'a> Queue<'a> {
    fn new(messages: &'a [Message]) -> Self {
        Self { messages, at: 0, held: HashSet::new() }
    }

    fn is_empty(&self) -> bool {
        self.at >= self.messages.len()
    }

    fn next<T>(
        &mut self,
        outcomes: &[Outcome],
        prepare: impl Fn(&Message) -> Option<T>,
    ) -> Option<(usize, T)> {
        while let Some(message) = self.messages.get(self.at) {
            let index = self.at;
            self.at += 1;
            if matches!(outcomes[index], Outcome::Stored { .. } | Outcome::Passed) {
                continue;
            }
            let key = message.ordering_key.as_deref().map(|key| (message.lane, key));
            let is_free =
                outcomes[index] == Outcome::Unknown && key.is_none_or(|key| !self.held.contains(&key));
            if is_free && let Some(prepared) = prepare(message) {
                return Some((index, prepared));
            }
            self.held.extend(key);
        }
        None
    }
}

impl Publisher {
    /// Publishes in batches what may go in batches.
    pub(super) async fn publish_atomically(
        &mut self,
        batch: &mut Batch<'_>,
        limits: &Limits,
        started: Instant,
    ) {
        let (batch_deadline, end) = (started + limits.batch_timeout, started + limits.batch_max());
        for at in 0..self.atomic.len() {
            if self.atomic[at].ask_at <= Instant::now() {
                self.ask_for_atomic(at, end).await;
            }
            let mut queue = Queue::new(batch.messages);
            while batch.away.is_none()
                && Instant::now() < batch_deadline
                && self.atomic[at].is_ready(Instant::now())
            {
                let members = self.next_members(at, &mut queue, batch, limits);
                // One alone is acknowledged sooner by itself.
                if members.len() < 2 {
                    break;
                }
                let messages = members.len();
                self.window.limits(!queue.is_empty());
                if let Err(failure) = self.publish_members(members, batch, limits, end).await {
                    self.atomic[at].rest(&failure, messages);
                }
            }
        }
    }

    async fn ask_for_atomic(&mut self, at: usize, end: Instant) {
        let reply = self.ask(&format!("{STREAM_INFO}{}", self.atomic[at].name), "", end).await;
        let (subjects, again) = match reply {
            Reply::Answer(info) => (parse_atomic(&info), ASK_EVERY),
            Reply::NoResponders | Reply::Denied => (None, ASK_EVERY),
            Reply::Silence => (None, PAUSE),
        };
        let stream = &mut self.atomic[at];
        stream.subjects = subjects.unwrap_or_default().into();
        stream.ask_at = Instant::now() + again;
    }

    /// As many as fit into one batch, each with its headers.
    fn next_members(
        &self,
        at: usize,
        queue: &mut Queue<'_>,
        batch: &Batch<'_>,
        limits: &Limits,
    ) -> Vec<(usize, HeaderMap)> {
        let AtomicStream { subjects, messages_max, .. } = &self.atomic[at];
        let prepare = |message: &Message| {
            let is_of_stream = subjects.iter().any(|pattern| covers(pattern, &message.subject));
            if !is_of_stream
                || message.is_left_out()
                || self.connection.silence.of(&message.subject) != Known::Nothing
            {
                return None;
            }
            // What cannot be sent is refused where it would be sent by itself.
            let headers = wire_headers(message, limits).ok()?;
            let limit = self.payload_max().saturating_sub(HEADERS_MAX);
            message.check_size(&headers, limit).ok().map(|()| headers)
        };
        let (mut members, mut weight) = (Vec::new(), 0);
        while members.len() < *messages_max
            && self.window.has_room(weight)
            && let Some((index, headers)) = queue.next(&batch.outcomes, prepare)
        {
            weight += Window::weight(batch.messages[index].payload.len());
            members.push((index, headers));
        }
        members
    }

    /// One batch; an error when it is not known to be stored. When the connection is over, the pass
    /// learns it from `batch.away`.
    async fn publish_members(
        &mut self,
        members: Vec<(usize, HeaderMap)>,
        batch: &mut Batch<'_>,
        limits: &Limits,
        end: Instant,
    ) -> Result<(), Failure> {
        let sent = Instant::now();
        let indexes: Vec<usize> = members.iter().map(|(index, _)| *index).collect();
        let number = self.next_number;
        self.next_number += 1;
        let unique = self.inbox.rsplit('.').next().unwrap_or_default();
        let id = format!("{unique}-{number}");
        let reply = format!("{}.{number}", self.inbox);
        if let Err(failure) = self.send_members(members, batch.messages, &id, &reply, limits).await {
            batch.away = Some(failure);
            return Ok(());
        }
        let deadline = end.min(Instant::now() + limits.ack_timeout);
        let answer = match self.await_commit(&reply, &indexes, batch.messages, deadline).await {
            Err(Failure::Disconnected) => {
                batch.away = Some(Failure::Disconnected);
                return Ok(());
            }
            other => other?,
        };
        batch.progress = Instant::now();
        self.connection.silence.heard(batch.progress);
        let Ack { stream, sequence, .. } = parse_commit(&answer.payload, &id, indexes.len())?;
        let weights = indexes.iter().map(|index| Window::weight(batch.messages[*index].payload.len()));
        self.window.answered(weights.sum(), sent, batch.progress);
        // The answer's sequence is that of the last one, and a batch is stored without gaps.
        for (index, sequence) in indexes.iter().rev().zip((1..=sequence).rev()) {
            batch.sent[*index] = Some(sent);
            let stream = stream.clone();
            batch.finish(*index, Ok(Ack { stream, sequence, duplicate: false }), limits);
        }
        Ok(())
    }

    async fn send_members(
        &self,
        members: Vec<(usize, HeaderMap)>,
        messages: &[Message],
        id: &str,
        reply: &str,
        limits: &Limits,
    ) -> Result<(), Failure> {
        let client = &self.connection.client;
        let count = members.len();
        for (number, (index, mut headers)) in (1..).zip(members) {
            // A client that is not connected could send it minutes later.
            if self.is_over() {
                return Err(Failure::Disconnected);
            }
            headers.insert(HeaderName::from_static("Nats-Batch-Id"), id);
            headers.insert(HeaderName::from_static("Nats-Batch-Sequence"), number.to_string());
            let (subject, payload) = (messages[index].subject.clone(), messages[index].payload.clone());
            let sending = async {
                if number == count {
                    headers.insert(HeaderName::from_static("Nats-Batch-Commit"), "1");
                    client.publish_with_reply_and_headers(subject, reply.to_owned(), headers, payload).await
                } else {
                    client.publish_with_headers(subject, headers, payload).await
                }
            };
            match timeout(limits.ack_timeout, sending).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(Failure::Disconnected),
                Err(_) => return Err(Failure::TimedOut),
            }
        }
        Ok(())
    }

    /// The answer to the last message of a batch.
    async fn await_commit(
        &mut self,
        reply: &str,
        members: &[usize],
        messages: &[Message],
        deadline: Instant,
    ) -> Result<async_nats::Message, Failure> {
        loop {
            tokio::select! {
                biased;
                answer = self.acks.next() => match answer {
                    None => return Err(Failure::Disconnected),
                    Some(answer) if *answer.subject != *reply => {}
                    Some(answer) if answer.status == Some(StatusCode::NO_RESPONDERS) => {
                        return Err(Failure::NoResponders);
                    }
                    Some(answer) => return Ok(answer),
                },
                denied = self.denied.recv() => if let Ok(subject) = denied
                    && members.iter().any(|index| *messages[*index].subject == *subject)
                {
                    return Err(Failure::Denied { subject: subject.to_string() });
                },
                () = self.connection.over.cancelled() => return Err(Failure::Disconnected),
                () = sleep_until(deadline) => return Err(Failure::TimedOut),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_its_ordering_key_is_in_no_batch() {
        let message = |key: Option<&str>, subject: &str| Message {
            ordering_key: key.map(str::to_owned),
            subject: subject.to_owned(),
            ..Message::example()
        };
        let messages = [
            message(Some("a"), "mine"),
            message(Some("b"), "other"),
            message(Some("a"), "mine"),
            message(Some("b"), "mine"),
            message(None, "mine"),
            message(Some("c"), "mine"),
            message(Some("c"), "mine"),
            message(Some("d"), "other"),
            message(Some("d"), "mine"),
        ];
        let mut outcomes = vec![Outcome::Unknown; messages.len()];
        outcomes[5] = Outcome::Behind;
        outcomes[7] = Outcome::Passed;
        let all = |outcomes: &[Outcome]| {
            let mut queue = Queue::new(&messages);
            let mine = |message: &Message| (message.subject == "mine").then_some(());
            let taken = std::iter::from_fn(|| queue.next(outcomes, mine).map(|(index, ())| index));
            taken.collect::<Vec<_>>()
        };
        assert_eq!(all(&outcomes), [0, 2, 4, 8]);
        // What another stream has stored meanwhile holds nothing back.
        let now = Instant::now();
        outcomes[1] = Outcome::Stored {
            duplicate: false,
            stream: "OTHER".into(),
            sequence: 1,
            sent_at: now,
            acknowledged_at: now,
        };
        assert_eq!(all(&outcomes), [0, 2, 3, 4, 8]);
    }
}
