//! Questions to JetStream about messages that no stream took, and about those without an answer.

use std::{collections::HashMap, time::Duration};

use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::Instant;

use super::{
    Publisher,
    answer::{Names, StreamInfo, parse_names},
    batch::Batch,
};
use crate::{
    config::Limits,
    delivery::{Failure, Outcome},
    nats::connection::Reply,
};

/// How many subjects JetStream is asked about in a row, at most; fewer when it fails to answer.
const QUESTIONS_MAX: usize = 256;

/// JetStream's answers about the subjects of a batch; each is asked about once.
struct Asked<'a> {
    failures: HashMap<&'a str, Failure>,
    /// All questions together take no longer than an acknowledgement may: meanwhile nothing is
    /// published, and the transaction is open.
    end: Instant,
    /// An answer to any worker within this time shows that the broker is there.
    lately: Duration,
    /// The last question was answered.
    answers: bool,
}

impl Asked<'_> {
    fn new(limits: &Limits, end: Instant) -> Self {
        let end = end.min(Instant::now() + limits.ack_timeout);
        Self { failures: HashMap::new(), end, lately: limits.ack_timeout / 2, answers: true }
    }

    fn is_over(&self) -> bool {
        !self.answers || self.failures.len() >= QUESTIONS_MAX || Instant::now() >= self.end
    }
}

impl Publisher {
    /// No stream took these messages. The answer to the publish does not say whether they have no
    /// stream, which an operator must mend, or one without a leader, which may take a while.
    pub(super) async fn explain(&mut self, batch: &mut Batch<'_>, limits: &Limits, end: Instant) {
        let mut asked = Asked::new(limits, end);
        let messages = batch.messages;
        for index in std::mem::take(&mut batch.orphans) {
            if batch.outcomes[index] != Outcome::Unknown {
                continue;
            }
            let subject = messages[index].subject.as_str();
            let failure = match asked.failures.get(subject) {
                Some(failure) => failure.clone(),
                None if !self.may_ask => Failure::NoResponders,
                None if asked.is_over() => Failure::NoAnswer,
                None => {
                    let failure = self.why_nobody_took(subject, asked.end).await;
                    asked.answers = failure != Failure::NoAnswer;
                    asked.failures.insert(subject, failure.clone());
                    failure
                }
            };
            if failure == Failure::NoResponders {
                self.connection.no_stream.notify_one();
            }
            batch.finish(index, Err(failure), limits);
        }
        self.ask_again(batch, limits, asked).await;
    }

    /// These messages go to subjects that were silent a while ago: they are sent when that is
    /// mended, as far as JetStream says. So a stream that acknowledges nothing does not get copy
    /// after copy.
    async fn ask_again(&mut self, batch: &mut Batch<'_>, limits: &Limits, mut asked: Asked<'_>) {
        asked.failures.clear();
        let messages = batch.messages;
        for index in std::mem::take(&mut batch.suspected) {
            let subject = messages[index].subject.as_str();
            self.ask_about(subject, &mut asked).await;
            match asked.failures.get(subject).filter(|_| asked.answers) {
                None => batch.finish(index, Err(Failure::NoAnswer), limits),
                Some(failure) if failure.shows_in_streams() => {
                    batch.finish(index, Err(failure.clone()), limits);
                }
                Some(_) => {
                    self.connection.breaker.close_subject(subject);
                    batch.free.push_back(index);
                }
            }
        }
    }

    /// No answer came for as long as an acknowledgement may take. A question to JetStream tells
    /// whether the broker is silent, so that the connection is to be given up, or only these
    /// messages are.
    pub(super) async fn face_silence(&mut self, batch: &mut Batch<'_>, limits: &Limits, end: Instant) {
        let mut asked = Asked::new(limits, end);
        let messages = batch.messages;
        for index in batch.open() {
            let subject = messages[index].subject.as_str();
            self.ask_about(subject, &mut asked).await;
            self.collect(batch, limits);
            if !batch.is_open(index) {
                continue;
            }
            let failure = asked.failures.get(subject).cloned().unwrap_or(Failure::Silent { stream: None });
            batch.give_up(index, failure, limits);
            if batch.away.is_some() {
                return;
            }
        }
        let now = Instant::now();
        batch.progress = now;
        self.window.halve(now, now);
    }

    /// Asks once why a subject has no answer. Where other workers are answered, the broker is
    /// there, and only its answer to this was late.
    async fn ask_about<'a>(&mut self, subject: &'a str, asked: &mut Asked<'a>) {
        if asked.failures.contains_key(subject) || asked.is_over() {
            return;
        }
        let mut failure = self.why_silent(subject, asked).await;
        let is_there =
            || !asked.failures.is_empty() || self.connection.breaker.was_heard_within(asked.lately);
        if failure == Failure::TimedOut && is_there() {
            failure = Failure::Silent { stream: None };
        }
        asked.failures.insert(subject, failure);
    }

    /// Acknowledgements that are there already.
    pub(super) fn collect(&mut self, batch: &mut Batch<'_>, limits: &Limits) {
        while let Some(Some(ack)) = self.acks.next().now_or_never() {
            batch.acknowledge(&ack, &mut self.window, limits);
        }
    }

    async fn why_nobody_took(&mut self, subject: &str, end: Instant) -> Failure {
        let failure = match self.streams_of(subject, end).await {
            Reply::Answer(names) => match parse_names(&names) {
                Names::None => self.why_gone(subject, end).await,
                Names::Stream(stream) => Failure::NoLeader { stream },
                Names::Refused(failure) => failure,
                Names::Stranger => Failure::NoAnswer,
            },
            Reply::NoResponders | Reply::Denied => self.why_gone(subject, end).await,
            Reply::Silence => Failure::NoAnswer,
        };
        if failure.is_absence() {
            self.connection.places.doubt_stream_of(subject);
        }
        failure
    }

    /// Why a message is not answered; [`Failure::TimedOut`] when the question has no answer either.
    async fn why_silent(&mut self, subject: &str, asked: &mut Asked<'_>) -> Failure {
        let only_this = || vec![subject.to_owned()];
        // One question of a batch is asked even when we may not: the refusal shows that the server
        // is there.
        let reply = if self.may_ask || asked.failures.is_empty() {
            self.streams_of(subject, asked.end).await
        } else {
            Reply::Denied
        };
        let (patterns, failure) = match reply {
            Reply::Silence => {
                asked.answers = false;
                return Failure::TimedOut;
            }
            Reply::Denied => (only_this(), Failure::Unexplained { stream: None }),
            Reply::NoResponders => (only_this(), self.only_subscribers(subject)),
            Reply::Answer(names) => match parse_names(&names) {
                Names::None => (only_this(), self.only_subscribers(subject)),
                Names::Refused(failure) => return failure,
                Names::Stranger => (only_this(), Failure::Unexplained { stream: None }),
                Names::Stream(stream) => match self.connection.ask_for_stream(&stream, asked.end).await {
                    Reply::Answer(info) => match StreamInfo::parse(&info).and_then(StreamInfo::no_ack) {
                        Some(patterns) => (patterns, Failure::NeverAcknowledges { stream }),
                        None => (only_this(), Failure::Silent { stream: Some(stream) }),
                    },
                    Reply::NoResponders | Reply::Silence => {
                        (only_this(), Failure::Silent { stream: Some(stream) })
                    }
                    Reply::Denied => (only_this(), Failure::Unexplained { stream: Some(stream) }),
                },
            },
        };
        if failure == Failure::OnlySubscribers {
            self.connection.no_stream.notify_one();
        }
        self.connection.breaker.open_subjects(patterns, failure.clone());
        failure
    }

    fn only_subscribers(&self, subject: &str) -> Failure {
        match self.elsewhere(subject) {
            Some(stream) => {
                self.connection.places.doubt_stream_of(subject);
                Failure::Silent { stream: Some(stream) }
            }
            None => Failure::OnlySubscribers,
        }
    }

    async fn streams_of(&mut self, subject: &str, end: Instant) -> Reply {
        let question = serde_json::json!({ "subject": subject }).to_string();
        let reply = self.connection.ask(&self.connection.stream_names(), &question, end).await;
        self.may_ask = !matches!(reply, Reply::Denied);
        reply
    }
}
