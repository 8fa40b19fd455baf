//! The relay's connection to NATS, and the knowledge that its workers share about JetStream.

use std::{
    ops::Deref,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use oncebox_connect::nats::{self, ConnectionError};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{places::Places, stored_id::Answers};
use crate::{
    config::{Config, StreamTable},
    delivery::breaker::Breaker,
    telemetry::metrics::Metrics,
};

/// For so long after the database was seen as the outbox's home, workers send. A process that was
/// suspended for longer looks and asks first: the outbox may have moved meanwhile.
const AT_HOME: Duration = Duration::from_secs(15);

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
    /// When the database was last seen as the outbox's home; `None` where nobody looks.
    seen_at_home: Arc<Mutex<Option<Instant>>>,
}

impl Connection {
    pub(crate) fn note_home(&self, at: Instant) {
        *self.seen_at_home.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
    }

    /// Whether the database was seen as the outbox's home a short while ago.
    pub(crate) fn is_at_home(&self) -> bool {
        let seen = *self.seen_at_home.lock().unwrap_or_else(PoisonError::into_inner);
        seen.is_none_or(|seen| seen.elapsed() < AT_HOME)
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
            seen_at_home: Arc::default(),
        })
    }
}
