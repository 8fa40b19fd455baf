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
    delivery::Breaker,
    telemetry::Metrics,
};

/// A process that was suspended for so long looks and asks where its outbox lives before it sends.
/// A relay of another place asks for this one for longer.
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
