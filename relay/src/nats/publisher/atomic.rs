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
//! | is not answered | nothing | each is published by itself: a stored one is answered as a duplicate |
//! | breaks off with the connection | nothing; half a batch is never visible | the next pass publishes all again |
//!
//! Batches come first in a pass; messages that none has stored go the ordinary way after them. A
//! message whose ordering key has an earlier one that is not stored yet is in no batch. A batch
//! that an old connection commits late cannot disturb that order: once one of its messages is
//! stored, the stream refuses all of it.

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_nats::{HeaderMap, StatusCode, header::HeaderName};
use futures_util::StreamExt as _;
use tokio::time::{Instant, sleep_until, timeout};

use super::{
    Publisher,
    answer::{Ack, StreamInfo, parse_commit},
    batch::Batch,
    held_back,
    window::Window,
    wire_headers,
};
use crate::{
    config::Limits,
    delivery::{Failure, Message, Outcome, breaker::Sending, covers},
    nats::connection::Reply,
};

/// The most messages of one batch: the limit of nats-server, unless it is configured otherwise.
const MESSAGES_MAX: usize = 1_000;
/// How often a stream is asked whether it allows batches.
const ASK_EVERY: Duration = Duration::from_secs(60);
/// The most bytes that a batch adds to the headers of a message.
const HEADERS_MAX: usize = 128;
/// After a refusal: its reason often holds for the next batch too.
const PAUSE: Duration = Duration::from_secs(1);

/// A stream that is to get its messages in atomic batches.
#[derive(Debug)]
pub(super) struct AtomicStream {
    name: String,
    /// Its subjects; none while it allows no batches.
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

/// A batch whose last message is on its way.
struct SentBatch {
    id: String,
    /// Where the answer comes.
    reply: String,
    /// The numbers of its messages in the pass, in the order in which they were sent.
    members: Vec<usize>,
    weight: usize,
    /// When its first message was sent.
    at: Instant,
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
    /// Publishes in batches the messages that may go so.
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
                let sent = match self.send_batch(at, &mut queue, batch, limits).await {
                    Ok(Some(sent)) => sent,
                    Ok(None) => break,
                    Err(failure) => {
                        batch.away = Some(failure);
                        break;
                    }
                };
                let messages = sent.members.len();
                if let Err(failure) = self.finish_batch(sent, batch, limits, end).await {
                    self.atomic[at].rest(&failure, messages);
                }
            }
        }
    }

    async fn ask_for_atomic(&mut self, at: usize, end: Instant) {
        let reply = self.connection.ask_for_stream(&self.atomic[at].name, end).await;
        let (subjects, again) = match reply {
            Reply::Answer(info) => (StreamInfo::parse(&info).and_then(StreamInfo::atomic), ASK_EVERY),
            Reply::NoResponders | Reply::Denied => (None, ASK_EVERY),
            Reply::Silence => (None, PAUSE),
        };
        let stream = &mut self.atomic[at];
        stream.subjects = subjects.unwrap_or_default().into();
        stream.ask_at = Instant::now() + again;
    }

    /// Sends as many as fit into one batch; nothing when they are fewer than two, since one alone
    /// is acknowledged sooner by itself. Each goes out when the next one is prepared, so that the
    /// server works meanwhile, and the last one is known to be the last.
    async fn send_batch(
        &mut self,
        at: usize,
        queue: &mut Queue<'_>,
        batch: &Batch<'_>,
        limits: &Limits,
    ) -> Result<Option<SentBatch>, Failure> {
        let number = self.next_number;
        let unique = self.inbox.rsplit('.').next().unwrap_or_default();
        let (id, reply) = (format!("{unique}-{number}"), format!("{}.{number}", self.inbox));
        let Some((mut last, mut headers)) = self.next_member(at, queue, batch, limits) else {
            return Ok(None);
        };
        let weight = |index: usize| Window::weight(batch.messages[index].payload.len());
        let mut sent = SentBatch { id, reply, members: Vec::new(), weight: weight(last), at: Instant::now() };
        while sent.members.len() + 1 < self.atomic[at].messages_max
            && self.window.has_room(sent.weight)
            && let Some((next, next_headers)) = self.next_member(at, queue, batch, limits)
        {
            if sent.members.is_empty() {
                // Even if the batch breaks off: the next one must not continue it under its id.
                self.next_number += 1;
            }
            self.send_member(&mut sent, &batch.messages[last], (last, headers), None, limits).await?;
            sent.weight += weight(next);
            (last, headers) = (next, next_headers);
        }
        if sent.members.is_empty() {
            return Ok(None);
        }
        self.window.limits(!queue.is_empty());
        let reply = sent.reply.clone();
        self.send_member(&mut sent, &batch.messages[last], (last, headers), Some(reply), limits).await?;
        Ok(Some(sent))
    }

    /// The next message that may go into a batch, with its headers.
    fn next_member(
        &self,
        at: usize,
        queue: &mut Queue<'_>,
        batch: &Batch<'_>,
        limits: &Limits,
    ) -> Option<(usize, HeaderMap)> {
        let subjects = &self.atomic[at].subjects;
        queue.next(&batch.outcomes, |message| {
            let is_of_stream = subjects.iter().any(|pattern| covers(pattern, &message.subject));
            if !is_of_stream
                || message.is_left_out()
                || message.is_unchecked
                || held_back(message).is_some()
                || self.connection.places.in_doubt(&message.subject).is_some()
                || self.connection.breaker.sending(&message.subject) != Sending::Publish
            {
                return None;
            }
            // A message that cannot be sent is refused where it would be sent by itself.
            let headers = wire_headers(message, limits).ok()?;
            let limit = self.payload_max().saturating_sub(HEADERS_MAX);
            message.check_size(&headers, limit).ok().map(|()| headers)
        })
    }

    /// Sends one message of a batch; the last one has a subject for the answer, and commits.
    async fn send_member(
        &self,
        sent: &mut SentBatch,
        message: &Message,
        (index, mut headers): (usize, HeaderMap),
        reply: Option<String>,
        limits: &Limits,
    ) -> Result<(), Failure> {
        // A client that is not connected could send it minutes later.
        if self.is_over() {
            return Err(Failure::Disconnected);
        }
        sent.members.push(index);
        headers.insert(HeaderName::from_static("Nats-Batch-Id"), sent.id.as_str());
        headers.insert(HeaderName::from_static("Nats-Batch-Sequence"), sent.members.len().to_string());
        let client = &self.connection.client;
        let (subject, payload) = (message.subject.clone(), message.payload.clone());
        let sending = async {
            if let Some(reply) = reply {
                headers.insert(HeaderName::from_static("Nats-Batch-Commit"), "1");
                client.publish_with_reply_and_headers(subject, reply, headers, payload).await
            } else {
                client.publish_with_headers(subject, headers, payload).await
            }
        };
        match timeout(limits.ack_timeout, sending).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Failure::Disconnected),
            Err(_) => Err(Failure::TimedOut),
        }
    }

    /// Waits for the answer to a batch; an error when it is not known to be stored. When the
    /// connection is over, the pass learns it from `batch.away`.
    async fn finish_batch(
        &mut self,
        sent: SentBatch,
        batch: &mut Batch<'_>,
        limits: &Limits,
        end: Instant,
    ) -> Result<(), Failure> {
        let SentBatch { id, reply, members, weight, at } = sent;
        let deadline = end.min(Instant::now() + limits.ack_timeout);
        let answer = match self.await_commit(&reply, &members, batch.messages, deadline).await {
            Err(Failure::Disconnected) => {
                batch.away = Some(Failure::Disconnected);
                return Ok(());
            }
            other => other?,
        };
        batch.progress = Instant::now();
        self.connection.breaker.heard(batch.progress);
        let Ack { stream, domain, sequence, .. } = parse_commit(&answer.payload, &id, members.len())?;
        self.window.answered(weight, at, batch.progress);
        // The answer has the last message's sequence, and a batch is stored without gaps.
        for (index, sequence) in members.iter().rev().zip((1..=sequence).rev()) {
            batch.sent[*index] = Some(at);
            let (stream, domain) = (stream.clone(), domain.clone());
            batch.finish(*index, Ok(Ack { stream, domain, sequence, duplicate: false }), limits);
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
        // A message that another stream has stored meanwhile holds nothing back.
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
