//! Publishes a batch to JetStream and collects the acknowledgements.
//!
//! Acknowledgements arrive on one inbox of our own, numbered, rather than through a future with a timer for each:
//! that is cheaper, leaves nothing behind for answers that never come, and lets one deadline watch over progress.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use async_nats::{StatusCode, Subscriber};
use futures_util::{FutureExt as _, StreamExt as _};
use serde::{Deserialize, de::IgnoredAny};
use tokio::{
    sync::broadcast::{Receiver, error::TryRecvError},
    time::{Instant, sleep_until, timeout},
};

use crate::{
    chains::Chains,
    decision::{Decision, Failure, decide},
    link::Link,
    message::Message,
};

/// Bounds of publishing.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Unacknowledged messages at most.
    pub(crate) window: usize,
    /// Without any acknowledgement for this long, the broker counts as away.
    pub(crate) ack_timeout: Duration,
    /// After this long nothing more of a batch is sent; what is left goes with the next.
    pub(crate) batch_timeout: Duration,
    pub(crate) expected_stream: Option<String>,
    /// Whether a dead message holds back its ordering key.
    pub(crate) dead_blocks: bool,
}

/// What became of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Not sent, or sent with no answer: the next pass sends it again.
    Unknown,
    Stored {
        duplicate: bool,
        sent_at: Instant,
        acknowledged_at: Instant,
    },
    /// To be set aside; the decision is not [`Decision::Away`].
    Failed(Decision, Failure),
    /// Not sent, because an earlier message of its ordering key is set aside.
    Behind,
}

/// Publishes over one link; made anew with each link.
#[derive(Debug)]
pub(crate) struct Publisher {
    link: Arc<Link>,
    inbox: String,
    acks: Subscriber,
    /// Subjects that NATS has just denied; the link's event callback sends them.
    denied: Receiver<Arc<str>>,
    /// Number of the next publish. Never used twice, so that a late answer is never taken for another's.
    next_number: u64,
}

impl Publisher {
    pub(crate) async fn new(link: Arc<Link>) -> Result<Self, async_nats::SubscribeError> {
        let denied = link.denied.subscribe();
        let inbox = link.client.new_inbox();
        let acks = link.client.subscribe(format!("{inbox}.*")).await?;
        Ok(Self { link, inbox, acks, denied, next_number: 0 })
    }

    pub(crate) fn is_over(&self) -> bool {
        self.link.over.is_cancelled()
    }

    /// Publishes what of the batch may be published, and returns the outcome of each message. When the broker goes
    /// away, the link is declared over and the rest is [`Outcome::Unknown`].
    pub(crate) async fn publish(&mut self, messages: &[Message], limits: &Limits) -> Vec<Outcome> {
        let given = messages.iter().map(|m| (!m.blocked).then_some((m.lane, m.ordering_key.as_deref())));
        let Chains { free, next } = Chains::new(given);
        let outcomes =
            messages.iter().map(|m| if m.blocked { Outcome::Behind } else { Outcome::Unknown }).collect();
        let first_number = self.next_number;
        self.next_number += messages.len() as u64;
        // What was denied before may be allowed by now: this batch finds out.
        while !matches!(self.denied.try_recv(), Err(TryRecvError::Empty | TryRecvError::Closed)) {}
        let mut batch = Batch {
            messages,
            outcomes,
            next,
            free: free.into(),
            sent: vec![None; messages.len()],
            in_flight: 0,
            progress: Instant::now(),
            first_number,
            denied: HashSet::new(),
            away: None,
        };
        self.drive(&mut batch, limits).await;
        if let Some(failure) = &batch.away {
            tracing::debug!(%failure, unacknowledged = batch.in_flight, "publish");
            self.link.end(failure);
        }
        batch.outcomes
    }

    async fn drive(&mut self, batch: &mut Batch<'_>, limits: &Limits) {
        let batch_deadline = Instant::now() + limits.batch_timeout;
        while batch.away.is_none() && (batch.in_flight > 0 || !batch.free.is_empty()) {
            if Instant::now() >= batch_deadline {
                batch.free.clear();
            }
            while batch.in_flight < limits.window
                && batch.away.is_none()
                && let Some(index) = batch.free.pop_front()
            {
                self.send(batch, index, limits).await;
                batch.progress = Instant::now();
            }
            if batch.in_flight == 0 {
                continue;
            }
            tokio::select! {
                biased;
                ack = self.acks.next() => match ack {
                    Some(ack) => {
                        batch.progress = Instant::now();
                        batch.acknowledge(&ack, limits);
                    }
                    None => batch.away = Some(Failure::Disconnected),
                },
                // The denials of other workers are no progress of this one.
                denied = self.denied.recv() => if denied.is_ok_and(|subject| batch.deny(&subject, limits)) {
                    batch.progress = Instant::now();
                },
                () = self.link.over.cancelled() => batch.away = Some(Failure::Disconnected),
                () = sleep_until(batch.progress + limits.ack_timeout) => batch.away = Some(Failure::TimedOut),
            }
            while let Some(Some(ack)) = self.acks.next().now_or_never() {
                batch.acknowledge(&ack, limits);
            }
        }
    }

    async fn send(&self, batch: &mut Batch<'_>, index: usize, limits: &Limits) {
        // Nothing is enqueued into a client that is not connected: it could be sent minutes later.
        if self.is_over() {
            batch.away = Some(Failure::Disconnected);
            return;
        }
        let message = &batch.messages[index];
        if batch.denied.contains(&*message.subject) {
            let failure = Failure::Denied { subject: message.subject.clone() };
            return batch.finish(index, Err(failure), limits);
        }
        let headers = message.wire_headers(limits.expected_stream.as_deref()).and_then(|headers| {
            let limit = self.link.client.max_payload();
            message.check_size(&headers, limit).map(|()| headers)
        });
        let headers = match headers {
            Ok(headers) => headers,
            Err(failure) => return batch.finish(index, Err(failure), limits),
        };
        let reply = format!("{}.{}", self.inbox, batch.first_number + index as u64);
        let publish = self.link.client.publish_with_reply_and_headers(
            message.subject.clone(),
            reply,
            headers,
            message.payload.clone(),
        );
        match timeout(limits.ack_timeout, publish).await {
            Ok(Ok(())) => {
                batch.sent[index] = Some(batch.progress);
                batch.in_flight += 1;
            }
            Ok(Err(error)) => match error.kind() {
                async_nats::PublishErrorKind::Send => batch.away = Some(Failure::Disconnected),
                async_nats::PublishErrorKind::MaxPayloadExceeded
                | async_nats::PublishErrorKind::InvalidSubject => {
                    let failure = Failure::BadHeader(format!("subject {}: {error}", message.subject));
                    batch.finish(index, Err(failure), limits);
                }
            },
            Err(_) => batch.away = Some(Failure::TimedOut),
        }
    }
}

/// A batch on its way.
struct Batch<'a> {
    messages: &'a [Message],
    outcomes: Vec<Outcome>,
    /// For each message the next one of its ordering key.
    next: Vec<Option<usize>>,
    /// Free to be sent, in order.
    free: VecDeque<usize>,
    /// What has gone out, and when.
    sent: Vec<Option<Instant>>,
    in_flight: usize,
    /// When something was last sent or answered: one look at the clock serves all of a turn.
    progress: Instant,
    first_number: u64,
    /// Subjects that NATS denied while this batch was under way.
    denied: HashSet<Arc<str>>,
    away: Option<Failure>,
}

impl Batch<'_> {
    fn acknowledge(&mut self, ack: &async_nats::Message, limits: &Limits) {
        let number = ack.subject.rsplit('.').next().and_then(|text| text.parse::<u64>().ok());
        let index =
            number.and_then(|n| n.checked_sub(self.first_number)).and_then(|n| usize::try_from(n).ok());
        // An answer to an earlier batch, or a second answer: too late to mean anything.
        let Some(index) = index.filter(|i| self.outcomes.get(*i) == Some(&Outcome::Unknown)) else { return };
        self.in_flight = self.in_flight.saturating_sub(1);
        let answer = if ack.status == Some(StatusCode::NO_RESPONDERS) {
            Err(Failure::NoResponders)
        } else {
            parse_ack(&ack.payload)
        };
        self.finish(index, answer, limits);
    }

    /// NATS answers a publish without permission by an error aside, which names the subject only: all that is in
    /// flight on it is taken as denied. Should one of these have been stored, it is sent again under the same id.
    /// Returns whether there was any.
    fn deny(&mut self, subject: &Arc<str>, limits: &Limits) -> bool {
        if !self.denied.insert(Arc::clone(subject)) {
            return false;
        }
        let open_before = self.in_flight;
        for index in 0..self.messages.len() {
            let is_open = self.sent[index].is_some() && self.outcomes[index] == Outcome::Unknown;
            if is_open && *self.messages[index].subject == **subject {
                self.in_flight = self.in_flight.saturating_sub(1);
                let failure = Failure::Denied { subject: subject.to_string() };
                self.finish(index, Err(failure), limits);
            }
        }
        self.in_flight < open_before
    }

    fn finish(&mut self, index: usize, answer: Result<bool, Failure>, limits: &Limits) {
        let decided = answer.map_err(|failure| (decide(&failure), failure));
        self.outcomes[index] = match decided {
            Ok(duplicate) => Outcome::Stored {
                duplicate,
                sent_at: self.sent[index].unwrap_or(self.progress),
                acknowledged_at: self.progress,
            },
            Err((Decision::Away, failure)) => {
                self.away = Some(failure);
                return;
            }
            Err((decision, failure)) => Outcome::Failed(decision, failure),
        };
        let holds_back = match &self.outcomes[index] {
            Outcome::Failed(Decision::Dead, _) => limits.dead_blocks,
            Outcome::Failed(..) => true,
            Outcome::Stored { .. } | Outcome::Unknown | Outcome::Behind => false,
        };
        let mut next = self.next[index];
        if !holds_back {
            self.free.extend(next);
            return;
        }
        while let Some(behind) = next {
            self.outcomes[behind] = Outcome::Behind;
            next = self.next[behind];
        }
    }
}

/// Whether the message was a duplicate, or why JetStream did not store it.
fn parse_ack(payload: &[u8]) -> Result<bool, Failure> {
    #[derive(Deserialize)]
    struct Ack {
        stream: Option<IgnoredAny>,
        seq: Option<IgnoredAny>,
        #[serde(default)]
        duplicate: bool,
        error: Option<ApiError>,
    }
    #[derive(Deserialize)]
    struct ApiError {
        #[serde(default)]
        err_code: u64,
        #[serde(default)]
        description: String,
    }
    match serde_json::from_slice(payload) {
        Ok(Ack { error: Some(ApiError { err_code, description }), .. }) => {
            Err(Failure::Refused { err_code, description })
        }
        Ok(Ack { stream: Some(_), seq: Some(_), duplicate, .. }) => Ok(duplicate),
        Ok(_) | Err(_) => Err(Failure::NotJetStream),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_jetstream_and_of_strangers() {
        assert_eq!(parse_ack(br#"{"stream":"S","seq":3}"#), Ok(false));
        assert_eq!(parse_ack(br#"{"stream":"S","seq":3,"duplicate":true,"domain":"x"}"#), Ok(true));
        let full = br#"{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"S","seq":0}"#;
        assert_eq!(
            parse_ack(full),
            Err(Failure::Refused { err_code: 10077, description: "maximum messages exceeded".into() })
        );
        for stranger in [&b""[..], b"ok", b"{}", b"[]", br#"{"stream":"S"}"#] {
            assert_eq!(parse_ack(stranger), Err(Failure::NotJetStream));
        }
    }
}
