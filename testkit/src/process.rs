//! A process that takes messages: an inbox with its handler, or your own.

use std::{error::Error as StdError, future::Future};

use oncebox_inbox::{Driver, Error, Handler, Inbox, Leased, LeasedHandler, Received, Verdict};

/// A process of a scenario.
///
/// An inbox with its handler is one, over any driver, also with a [`Set`](oncebox_inbox::Set) of
/// handlers; and so is a [`Leased`] with its [`LeasedHandler`]. Implement it for anything else that
/// works once per key, such as a service with an HTTP layer: `run` then sends a request with the
/// message's payload and `Idempotency-Key`, and an answer below 500, but not 409, is
/// [`Run::Ended`].
pub trait Process: Send + Sync {
    /// Deals with a message once. It may be dropped at any `.await`: the process has died.
    fn run(&self, message: &Received) -> impl Future<Output = Run> + Send;
}

/// The end of one run of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a run ends with the message, or the message comes again")]
pub enum Run {
    /// The message has ended, and its end is committed.
    Ended,
    /// Another process has it. It comes again.
    InFlight,
    /// The handler failed, or asked for it: the message comes again, as the next delivery. With the
    /// reason.
    Retry(String),
    /// The run broke off, as when PostgreSQL is away. The message comes again. With the problem.
    Failed(String),
}

impl<D: Driver, H: Handler<D>> Process for (Inbox<D>, H) {
    async fn run(&self, message: &Received) -> Run {
        Run::of(self.0.run(&self.1, message).await)
    }
}

impl<H: LeasedHandler> Process for (Leased, H) {
    async fn run(&self, message: &Received) -> Run {
        Run::of(self.0.run(&self.1, message).await)
    }
}

impl Run {
    fn of<R>(ended: Result<Verdict<R>, Error>) -> Self {
        match ended {
            // The server may not have ended the transaction of a process that died yet, or its
            // lease runs on.
            Ok(Verdict::InFlight) => Self::InFlight,
            Ok(Verdict::Retry { reason, .. }) => Self::Retry(reason),
            Ok(_) => Self::Ended,
            Err(error) => Self::Failed(causes(&error)),
        }
    }
}

/// An error and its causes in one line.
fn causes(error: &dyn StdError) -> String {
    let first_line = |error: &dyn StdError| error.to_string().lines().next().unwrap_or_default().to_owned();
    let (mut text, mut source) = (first_line(error), error.source());
    while let Some(error) = source {
        text = format!("{text}: {}", first_line(error));
        source = error.source();
    }
    text
}
