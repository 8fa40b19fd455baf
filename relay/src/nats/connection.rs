//! The relay's connection to NATS, the knowledge that its workers share about JetStream, and how
//! they ask it.

use std::{
    ops::Deref,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_nats::RequestErrorKind;
use bytes::Bytes;
use oncebox_connect::nats::{self, ConnectionError};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout_at},
};

use super::{places::Places, stored_id::Answers};
use crate::{
    config::{Config, StreamTable},
    delivery::Breaker,
    telemetry::Metrics,
};

/// A process that was suspended for this time looks and asks where its outbox lives before it
/// sends. A relay of another place asks for this one for longer.
pub(crate) const SUSPENDED: Duration = Duration::from_secs(10);

/// A live connection.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    inner: nats::Connection,
    /// The relay's, which outlives this connection.
    pub(crate) breaker: Breaker,
    /// Room for JetStream's answers about stored messages.
    pub(super) answers: Answers,
    pub(crate) places: Arc<Places>,
    /// Wakes the task that makes declared streams again: a message met no stream.
    pub(crate) no_stream: Arc<Notify>,
    /// When the gate last noted that the process runs; `None` without a gate.
    awake_at: Arc<Mutex<Option<Instant>>>,
}

impl Connection {
    pub(crate) fn note_awake(&self) {
        *self.awake_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether the process has not been suspended since the gate was opened.
    pub(crate) fn is_awake(&self) -> bool {
        let awake_at = *self.awake_at.lock().unwrap_or_else(PoisonError::into_inner);
        awake_at.is_none_or(|at| at.elapsed() < SUSPENDED)
    }
}

impl Deref for Connection {
    type Target = nats::Connection;

    fn deref(&self) -> &nats::Connection {
        &self.inner
    }
}

/// Where workers find the connection: `None` while NATS is away.
pub(crate) type Connections = watch::Receiver<Option<Arc<Connection>>>;

/// How to reach NATS.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    inner: nats::Server,
    pub(super) streams: Vec<StreamTable>,
    places: Arc<Places>,
    pub(crate) breaker: Breaker,
}

impl Server {
    pub(crate) fn new(config: &Config, name: String) -> Self {
        let inner = nats::Server::new(config, name);
        Self { inner, streams: config.streams.clone(), places: Arc::default(), breaker: Breaker::default() }
    }

    /// The servers, without credentials.
    pub(super) fn url(&self) -> &str {
        self.inner.url()
    }

    /// Finds the largest payload of the account: see [`nats::Server::find_payload_max`].
    pub(super) async fn find_payload_max(&self) -> Result<Option<usize>, String> {
        self.inner.find_payload_max().await
    }

    /// Tries each server once.
    pub(crate) async fn connect(&self, metrics: &Metrics) -> Result<Connection, ConnectionError> {
        let errors = metrics.nats_errors.clone();
        let note_error = move || {
            errors.inc();
        };
        Ok(Connection {
            inner: self.inner.connect(note_error).await?,
            breaker: self.breaker.clone(),
            answers: Answers::new(),
            places: Arc::clone(&self.places),
            no_stream: Arc::default(),
            awake_at: Arc::default(),
        })
    }
}

/// How long JetStream may take to answer one question.
const QUESTION: Duration = Duration::from_secs(1);

/// The result of a question.
pub(super) enum Reply {
    Answer(Bytes),
    /// No server answers there: this account has no JetStream.
    NoResponders,
    /// NATS does not let us ask, and says so: it works.
    Denied,
    Silence,
}

impl Connection {
    /// Asks once, and waits until `end` at the latest.
    pub(super) async fn ask(&self, place: &str, question: &str, end: Instant) -> Reply {
        let denial = self.denial(|subject| subject == place);
        let asking = self.client.request(place.to_owned(), question.to_owned().into());
        tokio::select! {
            answer = timeout_at(end.min(Instant::now() + QUESTION), asking) => match answer {
                Ok(Ok(answer)) => Reply::Answer(answer.payload),
                Ok(Err(error)) if error.kind() == RequestErrorKind::NoResponders => Reply::NoResponders,
                Ok(Err(_)) | Err(_) => Reply::Silence,
            },
            _ = denial => Reply::Denied,
        }
    }

    /// Asks for a stream by its name in receipts.
    pub(super) async fn ask_for_stream(&self, name: &str, end: Instant) -> Reply {
        let (api, stream) = self.api(name);
        self.ask(&format!("{api}.STREAM.INFO.{stream}"), "", end).await
    }

    /// Whether questions about a stream get no answer.
    pub(crate) async fn is_out_of_reach(&self, name: &str) -> bool {
        let reply = self.ask_for_stream(name, Instant::now() + QUESTION).await;
        matches!(reply, Reply::NoResponders | Reply::Silence)
    }
}
