//! The connection to NATS: one at a time, replaced rather than left to reconnect.
//!
//! async-nats reconnects by itself, but then publishes that were written to the old socket are gone
//! while later ones still queue, and acknowledgements in flight wait for their full deadline. So a
//! connection that breaks once is over: every worker drops it, and a new one is made. An old
//! connection may still send copies of messages that the new one sends, in the same order.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use async_nats::{Client, ConnectOptions, Event, ReconnectToServer, ServerError, jetstream};
use oncebox_schema::WAKE_SUBJECTS;
use tokio::{
    sync::{Mutex, broadcast},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{Dispatch, debug, instrument::WithSubscriber as _, warn};

use super::{
    connection_error::ConnectionError,
    permissions::{self, Denial, Denials},
};
use crate::{
    config::{Config, DEFAULT_API, Login, Nats, Secret, with_credentials},
    error::RelayError,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// async-nats gives up after two missed pongs, so a dead peer is noticed after three intervals.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// For this time the largest payload holds that a fresh connection was told.
const LIMIT_HOLDS: Duration = Duration::from_secs(5);
/// How many publishes may wait inside the client. Those that wait when a connection breaks may be
/// sent late.
const CLIENT_CAPACITY: usize = 1024;
/// The reason of a connection that the server cut because a message was too large.
pub(super) const TOO_LARGE: &str = "a message is larger than the account's max_payload";
/// The end of a subject for messages that only have a size: see `payload_max`.
pub(super) const PROBE: &str = "._oncebox_size";
/// How many denied subjects may wait for a worker. One that it misses it learns of with the next
/// attempt.
const DENIED_CAPACITY: usize = 1024;

/// The beginning of the subjects on which relays find other relays of the same outbox. They work
/// without them.
pub const HOME_SUBJECTS: &str = "_ONCEBOX.home.";

/// A live connection.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The client of async-nats.
    pub client: Client,
    /// Cancelled when this connection is over, by the client's own event or by a worker that got no
    /// answers.
    pub over: CancellationToken,
    /// Announces each subject that the server has just refused a message for.
    pub denied: broadcast::Sender<Arc<str>>,
    /// Why the connection is over, as far as the first to notice can tell.
    pub reason: Arc<OnceLock<String>>,
    /// The beginning of subjects for questions to JetStream.
    pub api: Arc<str>,
    /// Whether the configuration names it.
    pub has_own_api: bool,
    /// Connects anew, to see the limits of the server by now.
    pub(super) server: Box<Server>,
}

impl Connection {
    /// Asks JetStream which streams take a subject.
    pub fn stream_names(&self) -> String {
        stream_names(&self.api)
    }

    /// Whether the server and the account take larger payloads by now than was known when this
    /// connection was made: a server does not tell connections that it has. Asked every few seconds
    /// at most.
    pub async fn takes_more_by_now(&self, limit: usize) -> bool {
        let mut asked = self.server.asked.lock().await;
        if asked.is_some_and(|at| at.elapsed() < LIMIT_HOLDS) {
            return false;
        }
        let connecting = timeout(CONNECT_TIMEOUT, self.server.connect(|| ())).await;
        *asked = Some(Instant::now());
        let Ok(Ok(fresh)) = connecting else { return false };
        fresh.client.max_payload() > limit && fresh.account_takes_more(limit).await
    }

    /// The beginning of questions about a stream, and its name there: before it the domain may
    /// stand, as in `hub.ORDERS`.
    #[must_use]
    pub fn api<'a>(&self, name: &'a str) -> (String, &'a str) {
        match name.split_once('.') {
            Some((domain, stream)) => (format!("$JS.{domain}.API"), stream),
            None => (self.api.to_string(), name),
        }
    }

    /// JetStream as the configuration names it, with a deadline for each question.
    pub fn jetstream(&self, timeout: Duration) -> jetstream::Context {
        let builder = jetstream::ContextBuilder::new().timeout(timeout).api_prefix(&*self.api);
        builder.build(self.client.clone())
    }

    /// The JetStream that has a stream, and the stream's name there.
    pub fn jetstream_of<'a>(&self, name: &'a str, timeout: Duration) -> (jetstream::Context, &'a str) {
        let (api, stream) = self.api(name);
        let builder = jetstream::ContextBuilder::new().timeout(timeout).api_prefix(api);
        (builder.build(self.client.clone()), stream)
    }

    /// Gives the connection up; every worker drops it.
    pub fn end(&self, reason: &dyn std::fmt::Display) {
        let _ = self.reason.set(reason.to_string());
        self.over.cancel();
    }
}

/// How to reach NATS.
#[derive(Clone, Debug)]
pub struct Server {
    nats: Nats,
    name: String,
    denials: Arc<Denials>,
    /// When a fresh connection was last asked for the limit of payloads.
    asked: Arc<Mutex<Option<Instant>>>,
    /// The largest payload that the account was found to take: see `payload_max`.
    pub(super) payload_max: Arc<AtomicUsize>,
    /// Counts attempts to connect: of several servers each is tried in turn.
    turn: Arc<AtomicUsize>,
}

impl Server {
    /// With a name for the connections, which the server shows.
    pub fn new(config: &Config, name: String) -> Self {
        let turn = Arc::new(AtomicUsize::new(std::process::id() as usize));
        Self {
            nats: config.nats.clone(),
            name,
            denials: Arc::default(),
            asked: Arc::default(),
            payload_max: Arc::new(AtomicUsize::new(usize::MAX)),
            turn,
        }
    }

    /// The servers, without credentials.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.nats.url
    }

    /// Tries each server once, beginning with any: many relays spread over a cluster. Each error
    /// that NATS reports later is told to `note_error`.
    ///
    /// # Errors
    /// The error of the last server which was tried.
    pub async fn connect(
        &self,
        note_error: impl Fn() + Clone + Send + Sync + 'static,
    ) -> Result<Connection, ConnectionError> {
        let urls: Vec<&str> = self.nats.url.split(',').collect();
        let mut untried = urls.len();
        loop {
            untried -= 1;
            // Boxed because the client's future is large, and lies in those of all who start a
            // relay.
            let connected = Box::pin(self.connect_to(self.next(&urls), note_error.clone())).await;
            if connected.is_ok() || untried == 0 {
                return connected;
            }
        }
    }

    /// A connection for one command, within a time.
    pub async fn connect_once(
        config: &Config,
        name: &str,
        within: Duration,
    ) -> Result<Connection, RelayError> {
        let server = Self::new(config, name.to_owned());
        let connecting = timeout(within, server.connect(|| ())).await;
        connecting
            .map_err(|elapsed| RelayError::NatsUnreachable {
                target: config.nats_target(),
                source: elapsed.into(),
            })?
            .map_err(|error| error.at(config.nats_target()))
    }

    /// JetStream over a connection that reconnects by itself, for consumers; the first attempt has
    /// to succeed within a time.
    pub async fn connect_lasting(
        config: &Config,
        name: &str,
        within: Duration,
    ) -> Result<jetstream::Context, RelayError> {
        let server = Self::new(config, name.to_owned());
        let unreachable = |error: ConnectionError| error.at(config.nats_target());
        let urls: Vec<&str> = config.nats.url.split(',').collect();
        let options = server.options().map_err(unreachable)?.max_reconnects(None);
        let connected = timeout(within, options.connect(urls)).await.map_err(|elapsed| {
            RelayError::NatsUnreachable { target: config.nats_target(), source: elapsed.into() }
        })?;
        let client = connected.map_err(|error| unreachable(error.into()))?;
        let api = config.nats.api.as_str();
        Ok(jetstream::ContextBuilder::new().api_prefix(api).build(client))
    }

    fn next<'a>(&self, urls: &[&'a str]) -> &'a str {
        urls[self.turn.fetch_add(1, Relaxed) % urls.len()]
    }

    async fn connect_to(
        &self,
        url: &str,
        note_error: impl Fn() + Send + Sync + 'static,
    ) -> Result<Connection, ConnectionError> {
        let over = CancellationToken::new();
        let reason = Arc::new(OnceLock::new());
        let (denied, _) = broadcast::channel(DENIED_CAPACITY);
        let watcher = Watcher {
            over: over.clone(),
            reason: Arc::clone(&reason),
            denied: denied.clone(),
            denials: Arc::clone(&self.denials),
            stream_names: stream_names(&self.nats.api),
            note_error,
        };
        let client = self
            .options()?
            .event_callback(move |event| {
                watcher.heard(&event);
                async {}
            })
            // The client logs an error when it exhausts its attempts, but not if it is told which
            // server to try. This is the one that it would try.
            .reconnect_to_server_callback(|servers, _| async move {
                let addr = servers.first()?.addr.clone();
                Some(ReconnectToServer { addr, delay: None })
            })
            .connect(url)
            // The client logs failed attempts as errors of the service that a relay is in. They are
            // returned as well, and the caller logs them.
            .with_subscriber(Dispatch::none())
            .await?;
        let api = self.nats.api.as_str().into();
        let server = Box::new(self.clone());
        let has_own_api = self.nats.api != DEFAULT_API;
        Ok(Connection { client, over, denied, reason, api, has_own_api, server })
    }

    fn options(&self) -> Result<ConnectOptions, ConnectionError> {
        let Nats { login, ca_file, identity, .. } = &self.nats;
        let secret = |secret: &Secret| secret.read().map_err(ConnectionError::Login);
        let mut options = ConnectOptions::new()
            .name(&self.name)
            .connection_timeout(CONNECT_TIMEOUT)
            .ping_interval(PING_INTERVAL)
            .client_capacity(CLIENT_CAPACITY)
            .custom_inbox_prefix(&self.nats.inbox_prefix)
            .require_tls(self.nats.tls_required)
            // Only exhausting the attempts ends the client's task for good; see the module's text.
            .max_reconnects(1);
        if self.nats.tls_first {
            options = options.tls_first();
        }
        if let Some(path) = ca_file {
            options = options.add_root_certificates(path.clone());
        }
        if let Some((cert, key)) = identity {
            options = options.add_client_certificate(cert.clone(), key.clone());
        }
        Ok(match login {
            Login::Nobody => options,
            Login::Password { user, password } => options.user_and_password(user.clone(), secret(password)?),
            Login::Token(token) => options.token(secret(token)?),
            Login::Seed(seed) => options.nkey(secret(seed)?),
            Login::Credentials(content) => {
                let problem =
                    |_| ConnectionError::Login("the .creds file holds no JWT and seed any more".to_owned());
                with_credentials(options, &secret(content)?).map_err(problem)?
            }
        })
    }
}

/// The meaning of the client's events.
struct Watcher<N> {
    over: CancellationToken,
    reason: Arc<OnceLock<String>>,
    denied: broadcast::Sender<Arc<str>>,
    denials: Arc<Denials>,
    stream_names: String,
    note_error: N,
}

fn stream_names(api: &str) -> String {
    format!("{api}.STREAM.NAMES")
}

impl<N: Fn()> Watcher<N> {
    fn heard(&self, event: &Event) {
        match event {
            Event::Connected => {}
            // The server is about to leave: better to go now than to be cut off in a batch.
            Event::Disconnected | Event::Closed | Event::Draining | Event::LameDuckMode => {
                self.end(event.to_string());
            }
            Event::ServerError(ServerError::Other(text)) if let Some(denial) = permissions::parse(text) => {
                (self.note_error)();
                self.deny(denial);
            }
            Event::ServerError(ServerError::Other(text))
                if text.eq_ignore_ascii_case("maximum payload violation") =>
            {
                (self.note_error)();
                self.end(TOO_LARGE.to_owned());
            }
            Event::SlowConsumer(_) | Event::ServerError(_) | Event::ClientError(_) => {
                (self.note_error)();
                if self.over.is_cancelled() {
                    // The connection is given up already, and the reason was logged.
                    debug!(%event, "NATS reported an error");
                } else {
                    warn!(%event, "NATS reported an error");
                }
            }
        }
    }

    fn deny(&self, denial: Denial) {
        match denial {
            // The relay's own questions, which it can do without; see `publisher`, `payload_max`.
            Denial::Publish(subject)
                if subject == self.stream_names
                    || subject.ends_with(PROBE)
                    || subject.starts_with(HOME_SUBJECTS) =>
            {
                let _ = self.denied.send(subject.into());
            }
            Denial::Subscribe(subject)
                if subject.starts_with(HOME_SUBJECTS) || subject.starts_with(WAKE_SUBJECTS) =>
            {
                let _ = self.denied.send(subject.into());
            }
            Denial::Publish(subject) => {
                self.denials.report_publish(&subject);
                // No worker listens while no batch is under way.
                let _ = self.denied.send(subject.into());
            }
            Denial::Subscribe(subject) => {
                self.denials.report_subscribe(&subject);
                // The subject is left out, since it differs each time and the log compares reasons.
                self.end("NATS does not let the relay's user subscribe to its inbox".to_owned());
            }
        }
    }

    fn end(&self, reason: String) {
        let _ = self.reason.set(reason);
        self.over.cancel();
    }
}
