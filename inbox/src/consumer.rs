//! Feeding an inbox from a durable JetStream pull consumer.
//!
//! One task per consumer, the pump, pulls, queues, and acknowledges; up to `concurrency` workers
//! run the inbox, each one message after another.
//!
//! ```text
//!            pull (as many as there is room for)
//! JetStream ─────────────────────────────▶ queue ──one per ordering key──▶ inbox ─▶ commit
//!     ▲                                      ▲                               │
//!     │                                      └──── again, after a pause ─────┤
//!     └───────── ack, term, NAK with delay, "in progress" while held ────────┘
//! ```
//!
//! The pump pulls only as many messages as it has room for, by number and by bytes, and reports
//! held messages as in progress. If JetStream delivers a message again all the same, that costs no
//! attempt: the inbox counts attempts by itself, see `claims/src/records/attempts.rs`.

mod backlog;
mod batch_mode;
mod filter;
mod held_message;
mod interruption;
mod large;
mod leader_lock;
mod dead_letter_publisher;
mod mode;
mod pump;
mod queue;
mod settings;
mod setup;
mod pull_session;
mod runs;
mod strict_order;
mod unreadable;
mod worker;

use std::time::Duration;

use async_nats::jetstream;
use tokio_util::sync::CancellationToken;

use crate::Error;
pub use backlog::Backlog;
pub use dead_letter_publisher::dead_letter_id;
pub use runs::Runs;
use settings::Settings;

/// The promise about the order in which the effects of messages with one ordering key are
/// committed. Messages without an ordering key have no order. A dead letter stops later messages of
/// its ordering key in strict order only: see [`BehindDead`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Each process handles the messages it receives one at a time per ordering key, in stream
    /// order, retries included. Any number of processes share the work. When a process dies or
    /// loses its connection, JetStream delivers newer messages before it redelivers the ones that
    /// process held: then a later message may be handled before an earlier one.
    #[default]
    PerProcess,
    /// Stream order per ordering key, also after any crash: one process consumes, the others stand
    /// by. A process that takes over, or notices that a delivery is missing, recreates the durable
    /// consumer at its acknowledgement floor, so that everything unsettled comes again in stream
    /// order; the inbox answers copies of handled messages from the stored outcomes.
    ///
    /// A process that is suspended, or cut off, loses the right to consume after 30 seconds; the
    /// keys of its running handlers are free after their `handler_timeout`.
    ///
    /// Keeps one connection of the inbox's pool, standing by as well, for a transaction that holds
    /// an advisory lock and is idle: give the pool one connection more than messages are handled at
    /// once. The transaction has no snapshot, so it holds back no vacuum. If your DBA ends sessions
    /// that are idle in a transaction, another process takes over.
    Strict,
}

/// The rule for later messages of an ordering key, in [strict order](Order::Strict), when one of
/// them has become a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BehindDead {
    /// They wait in the database, in their order, and do not run. This number may wait for each
    /// ordering key, 1 to 100,000; further ones stay in the stream, where they hold up the consumer
    /// when it holds no others. Default: 1,000.
    ///
    /// Once an operator has retried or discarded the dead letter (`oncebox inbox dead`), the
    /// consumer runs the line from its head, each message when the one before it has ended, and
    /// newly arriving ones after those. It stops again at the first that becomes a dead letter.
    Wait(u32),
    /// They overtake it, and a retried dead letter comes back at the end of the stream.
    Overtake,
}

impl Default for BehindDead {
    fn default() -> Self {
        Self::Wait(1000)
    }
}

/// A durable pull consumer that feeds an inbox.
///
/// The JetStream consumer is created when it does not exist, and brought up to date when its
/// settings differ.
#[derive(Clone, Debug)]
#[must_use = "a consumer does nothing until `run`"]
pub struct Consumer {
    jetstream: jetstream::Context,
    settings: Settings,
}

impl Consumer {
    /// A consumer of this stream with this durable name. Processes with the same durable name share
    /// the messages.
    pub fn new(jetstream: jetstream::Context, stream: impl Into<String>, durable: impl Into<String>) -> Self {
        let settings = Settings::new(stream.into(), durable.into());
        Self { jetstream, settings }
    }

    /// Takes only messages whose subject matches. A filter that no subject of the stream can match
    /// is refused at the start. Default: all of the stream.
    pub fn filter_subject(self, subject: impl Into<String>) -> Self {
        self.filter_subjects([subject])
    }

    /// Takes only messages whose subject matches one of these filters; they must not overlap. More
    /// than one needs nats-server 2.10 or later. [`Decode`](crate::Decode) sees the subject, so
    /// that one handler takes several types.
    pub fn filter_subjects<S: Into<String>>(mut self, subjects: impl IntoIterator<Item = S>) -> Self {
        self.settings.filter_subjects = subjects.into_iter().map(Into::into).collect();
        if self.settings.filter_subjects == [""] {
            self.settings.filter_subjects.clear();
        }
        self
    }

    /// How many messages are handled at once, 1 to 1024. Default: 16. The pool should have as many
    /// connections.
    pub fn concurrency(mut self, count: usize) -> Self {
        self.settings.concurrency = count;
        self
    }

    /// How many messages a worker takes together, 1 to 1000; with the concurrency no more than
    /// 20,000. Default: 1, each message in a transaction of its own.
    ///
    /// With more, messages share transactions, see [`Inbox::run_batch`](crate::Inbox::run_batch)
    /// for the consequences: several times as many messages per second where handlers are quick,
    /// and more where they take sets ([`Handler::TAKES_SETS`](crate::Handler::TAKES_SETS)). A
    /// worker takes the messages that are there and never waits for a batch to fill. Twice as many
    /// messages as all workers can take are held in memory.
    pub fn batch(mut self, count: usize) -> Self {
        self.settings.batch_size = count;
        self
    }

    /// How long JetStream waits for a sign of life before it delivers a message again, 500
    /// milliseconds to 1 hour. If a process dies, its messages wait for this time. The consumer
    /// gives such a sign for held messages every third of this time.
    ///
    /// Default: 6 seconds, or longer where that would be more than 2000 signs a second of this
    /// process. It holds four messages for each of [`Consumer::concurrency`], or two for each that
    /// a worker takes ([`Consumer::batch`]), and 16 at least: it takes more than 4,000 held
    /// messages to have more than 6 seconds, and the largest allowed settings have 60.
    pub fn ack_wait(mut self, limit: Duration) -> Self {
        self.settings.ack_wait = Some(limit);
        self
    }

    /// How many messages all processes of this durable name may have unacknowledged, 1 to
    /// 10,000,000; also those that wait for another attempt or are
    /// [snoozed](crate::Outcome::Snooze). When there are as many, JetStream delivers nothing more
    /// until one is settled.
    ///
    /// Default: 16 times the messages that this process holds, see [`Consumer::ack_wait`], and 1000
    /// at least. All processes need the same value, since each brings the consumer up to date when
    /// it starts: give it here where they differ in concurrency.
    ///
    /// ```
    /// # fn example(jetstream: async_nats::jetstream::Context) -> oncebox_inbox::Consumer {
    /// oncebox_inbox::Consumer::new(jetstream, "ORDERS", "payment").concurrency(32).max_ack_pending(20_000)
    /// # }
    /// ```
    pub fn max_ack_pending(mut self, count: usize) -> Self {
        self.settings.max_ack_pending = Some(count);
        self
    }

    /// How many bytes of messages this process holds, 1 MiB at least. Default: 64 MiB. A message
    /// that is larger than that is held alone.
    pub fn held_bytes(mut self, count: usize) -> Self {
        self.settings.held_bytes = count;
        self
    }

    /// A larger payload is not fetched from the Object Store, and its message fails. Default: 64
    /// MiB. Each worker holds one such payload at most, beside those of `held_bytes`.
    pub fn object_bytes_max(mut self, bytes: usize) -> Self {
        self.settings.object_bytes_max = bytes;
        self
    }

    /// How long a message is held at most, waiting or worked on, before JetStream may deliver it
    /// elsewhere. Default: 1 hour.
    pub fn hold_max(mut self, limit: Duration) -> Self {
        self.settings.hold_max = limit;
        self
    }

    /// How long a shutdown waits for the messages being handled. Default: 30 seconds.
    pub fn grace(mut self, limit: Duration) -> Self {
        self.settings.grace = limit;
        self
    }

    /// Publishes dead letters to this subject too. A stream must take it, and this consumer must
    /// not. Default: dead letters are in the database only.
    ///
    /// The row in `dead_letter` remains the truth, and is committed first. Then the consumer
    /// publishes the letter, and terminates the message once JetStream has acknowledged the letter,
    /// within 5 seconds. If the process dies in between, the letter is published again: at least
    /// once, under a `Nats-Msg-Id` of its own, so that the stream drops repetitions inside its
    /// window. While no stream takes it, the consumer gives the message back with a pause of 1
    /// second to 5 minutes, for up to 24 hours; then it logs an error, and the letter stays in the
    /// database only. Other messages go on meanwhile.
    ///
    /// A letter is the message with its own headers, except those named `Nats-`, and with
    /// `Oncebox-Dead-Reason`, `-Scope`, `-Tenant`, `-Key`, `-Deliveries`, `-Subject`, `-Stream`,
    /// `-Sequence` and `-Id` (the row's). One that would be too large for the server or the stream
    /// comes without payload and the message's headers, and with `Oncebox-Dead-Payload: left out`.
    ///
    /// ```
    /// # fn example(jetstream: async_nats::jetstream::Context) -> oncebox_inbox::Consumer {
    /// oncebox_inbox::Consumer::new(jetstream, "ORDERS", "payment").dead_letter_subject("dead.payment")
    /// # }
    /// ```
    pub fn dead_letter_subject(mut self, subject: impl Into<String>) -> Self {
        self.settings.dead_letter_subject = Some(subject.into());
        self
    }

    /// The promise about order. Default: [`Order::PerProcess`].
    pub fn order(mut self, order: Order) -> Self {
        self.settings.order = order;
        self
    }

    /// The rule for later messages of an ordering key when one has become a dead letter. It counts
    /// in [`Order::Strict`] only; without it they overtake the dead letter. Default:
    /// [`BehindDead::Wait`] with 1,000.
    pub fn behind_dead(mut self, rule: BehindDead) -> Self {
        self.settings.behind_dead = rule;
        self
    }

    /// Consumes until `shutdown` is cancelled, then lets the messages being handled finish within
    /// the grace period and gives the others back.
    ///
    /// Once it runs, losing NATS or PostgreSQL is not an error: it goes on when they are back.
    ///
    /// A message that no client can read, because its headers are malformed, becomes a dead letter
    /// without a key when it has come twice. That takes the permission to publish to
    /// `$JS.API.STREAM.MSG.GET.<stream>`.
    ///
    /// The inbox is an [`Inbox`](crate::Inbox) over any driver, with batches if set, which need
    /// tokio-postgres; or a [`Leased`](crate::Leased) for effects outside the database. While
    /// another process has a lease on the key of a message, the consumer holds the message, and
    /// looks at it again until that lease ends.
    ///
    /// # Errors
    /// Settings that cannot work, all at once; the database or the stream is not there, or not
    /// usable, at the start; no stream takes [`Consumer::dead_letter_subject`]; the client of NATS
    /// will not connect again, because it was closed, was told to give up, or died.
    pub async fn run<H>(
        self,
        inbox: impl Runs<H>,
        handler: H,
        shutdown: CancellationToken,
    ) -> Result<(), Error> {
        Box::pin(inbox.run(self, handler, shutdown)).await
    }
}
