//! Configuration: flags over environment over a file, checked as a whole, all mistakes reported at
//! once.
//!
//! One table, [`OPTIONS`], names every option; the command line, the environment, the file, the
//! checks, the help text and docs/configuration.md come from it. Only this module reads the
//! environment, through a function that tests replace. A process reads its configuration once: a
//! change takes a restart. Only secrets and certificates for NATS in files of their own are read
//! with each connection.

mod address;
pub mod database;
mod document;
mod file;
mod fleet;
mod limits;
mod nats;
mod options;
mod outbox;
mod place;
mod reader;
mod sources;
mod stream;
mod table;
pub mod tls;
mod url_tls;

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use oncebox_contracts::Contracts;
use tracing_subscriber::EnvFilter;

pub use database::Database;
pub use document::options_document;
pub use fleet::{NamedConfig, Settings};
pub use limits::{LargePayloads, Limits, OnLoss, ReadLimits};
pub(crate) use nats::{DEFAULT_API, Login, Nats, with_credentials};
use options::STREAM;
pub use options::{OPTIONS, OptionSpec};
pub use outbox::OutboxConfig;
use reader::Reader;
pub(crate) use sources::Secret;
pub use sources::Sources;
pub use stream::{Policy, Publish, StreamTable};

/// A validated configuration of one relay. Made by [`Config::from_values`].
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the outbox is.
    pub outbox: OutboxConfig,
    /// How to reach NATS.
    pub(crate) nats: Nats,
    /// The declared streams.
    pub streams: Vec<StreamTable>,
    /// Workers at most: one handles low traffic; more start for a backlog.
    pub workers: usize,
    /// The bounds of a worker.
    pub tuning: Tuning,
    /// The reaction to a loss.
    pub on_loss: OnLoss,
    /// How long sagas last at most, where that was said.
    pub saga_lifetime: Option<Duration>,
    /// Where health and metrics are served; `None` is nowhere.
    pub http_listen: Option<SocketAddr>,
    /// The whole URL that spans are sent to; with `None` they are not sent.
    pub otlp_endpoint: Option<String>,
    /// The whole URL that metrics are sent to, and how often; with `None` they are not sent.
    pub otlp_metrics: Option<(String, Duration)>,
    /// Where passes are recorded.
    pub trace_file: Option<PathBuf>,
    /// How long passes under way may take when the relay stops.
    pub grace: Duration,
    /// A worker that got no further for longer is stuck.
    pub stuck_after: Duration,
    /// With nothing due for this time the relay sleeps, without a connection to the database;
    /// `None` is never.
    pub sleep_after: Option<Duration>,
    /// A sleeping relay wakes after this time at the latest.
    pub sleep_at_most: Duration,
    /// Settings that work, but not as safely as they could; a line each.
    pub weaknesses: Vec<String>,
}

/// The bounds of a worker.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// Lanes claimed by one pass at most.
    pub lanes_max: i64,
    /// Payload bytes are rounded up to a whole message.
    pub read: ReadLimits,
    /// Attempts after which a message is dead.
    pub attempts_max: i32,
    /// The shortest pause between two looks.
    pub poll_min: Duration,
    /// The longest one.
    pub poll_max: Duration,
    /// Bounds of publishing.
    pub limits: Limits,
}

/// Everything wrong with a configuration, one line each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct ConfigError(pub Vec<String>);

impl ConfigError {
    /// Each mistake once: those above the tables of databases are found with each of them.
    #[must_use]
    pub fn distinct(mut mistakes: Vec<String>) -> Self {
        let mut seen = HashSet::new();
        mistakes.retain(|mistake| seen.insert(mistake.clone()));
        Self(mistakes)
    }
}

/// The settings as typed: option name to text.
pub type Values = HashMap<&'static str, String>;

impl Config {
    /// Checks the settings of a relay in your own process; see [`OPTIONS`] for names, meaning and
    /// defaults. Unlike the program, it serves HTTP only if `http-listen` is given.
    ///
    /// # Errors
    /// All mistakes at once, none of which shows a secret.
    pub fn from_values(values: &Values) -> Result<Self, ConfigError> {
        Self::from_sources(&Sources::from(values))
    }

    /// As [`Config::from_values`], with mistakes that say where each value was given.
    ///
    /// # Errors
    /// All mistakes at once, those of the file and of unknown names among them, none of which shows
    /// a secret.
    pub fn from_sources(sources: &Sources) -> Result<Self, ConfigError> {
        let mut read = Reader { sources, mistakes: sources.mistakes.clone(), weaknesses: Vec::new() };
        let database = database::database(&mut read);
        let nats = nats::nats(&mut read);
        let schema = read.parsed("schema", outbox::schema).unwrap_or_default();
        let tuning = tuning(&mut read);
        let stuck_after = read.duration("stuck-seconds", Duration::from_secs(10), Duration::from_secs(3600));
        // A pause is jittered by up to a half.
        if stuck_after < tuning.poll_max * 2 {
            read.mistake(
                "stuck-seconds",
                "is below twice poll-max-milliseconds: a pause would count as stuck",
            );
        }
        let http_listen = read
            .parsed("http-listen", |text| match text {
                "off" => Ok(None),
                address => {
                    address.parse().map(Some).map_err(|_| format!("{address:?} is not IP:PORT or \"off\""))
                }
            })
            .flatten();
        let workers = read.small("workers", 1, 64) as usize;
        read.parsed("log", |text| match EnvFilter::builder().parse(text) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("{text:?} is no log filter: {error}")),
        });
        let retention = read.parsed("retention", outbox::retention).flatten();
        let collector = read.parsed("otlp-endpoint", otlp_endpoint);
        let metrics_every = read.duration("otlp-metrics-seconds", Duration::ZERO, Duration::from_secs(3600));
        let otlp_metrics = collector.as_ref().filter(|_| !metrics_every.is_zero());
        let config = Self {
            nats,
            streams: streams(&mut read),
            workers,
            tuning,
            on_loss: read.parsed("on-loss", OnLoss::parse).unwrap_or_default(),
            saga_lifetime: read.parsed("saga-lifetime", lifetime),
            http_listen,
            otlp_metrics: otlp_metrics.map(|url| (format!("{url}/v1/metrics"), metrics_every)),
            otlp_endpoint: collector.map(|url| format!("{url}/v1/traces")),
            trace_file: read.parsed("trace-file", |text| Ok(PathBuf::from(text))),
            grace: read.duration("grace-seconds", Duration::ZERO, Duration::from_secs(600)),
            stuck_after,
            sleep_after: read.parsed("sleep-after", sleep_after).flatten(),
            sleep_at_most: read.parsed("sleep-at-most", sleep_at_most).unwrap_or_default(),
            outbox: OutboxConfig {
                database,
                schema,
                retention,
                log_json: read.parsed("log-format", outbox::log_json).unwrap_or_default(),
            },
            weaknesses: std::mem::take(&mut read.weaknesses),
        };
        if read.mistakes.is_empty() { Ok(config) } else { Err(ConfigError(read.mistakes)) }
    }

    /// Where the outbox is: all that a command needs which talks to PostgreSQL alone.
    #[must_use]
    pub fn outbox(&self) -> &OutboxConfig {
        &self.outbox
    }

    /// The NATS URL without user, password or token.
    #[must_use]
    pub fn nats_target(&self) -> String {
        self.nats.url.clone()
    }

    /// The filter of the log, in the syntax of `tracing_subscriber::EnvFilter`.
    #[must_use]
    pub fn log_filter(values: &Values) -> String {
        let sources = Sources::from(values);
        Reader { sources: &sources, mistakes: Vec::new(), weaknesses: Vec::new() }
            .text("log")
            .unwrap_or_default()
    }
}

/// The streams of the file, or of a database's table, and those that were typed.
fn streams(read: &mut Reader<'_>) -> Vec<StreamTable> {
    let mut streams = read.sources.streams.clone();
    for typed in read.parsed(STREAM, stream::typed).unwrap_or_default() {
        match streams.iter().any(|stream| stream.name == typed.name) {
            true => read.mistake(STREAM, format_args!("stream {} is declared twice", typed.name)),
            false => streams.push(typed),
        }
    }
    if let Some(bucket) = read.parsed("object-store", stream::bucket_name) {
        stream::declare_bucket(&mut streams, &bucket);
    }
    streams
}

/// The bucket for large payloads, if one is named.
fn large_payloads(read: &mut Reader<'_>) -> Option<LargePayloads> {
    let above = read.small("large-payload-bytes", 1, 8 * 1024 * 1024) as usize;
    let bucket = read.parsed("object-store", stream::bucket_name)?;
    Some(LargePayloads { bucket, above })
}

fn tuning(read: &mut Reader<'_>) -> Tuning {
    let milliseconds = Duration::from_millis;
    let poll_min = read.duration("poll-min-milliseconds", milliseconds(1), milliseconds(60_000));
    let poll_max = read.duration("poll-max-milliseconds", milliseconds(1), milliseconds(60_000));
    if poll_min > poll_max {
        read.mistake("poll-min-milliseconds", "is above poll-max-milliseconds");
    }
    let atomic = read.sources.streams.iter().filter(|stream| stream.publish == Publish::Atomic);
    let dead_blocks = read.parsed("on-dead", on_dead).unwrap_or(true);
    Tuning {
        lanes_max: read.small("batch-lanes", 1, 256).into(),
        read: ReadLimits {
            messages_max: read.small("batch-messages", 1, 10_000).into(),
            bytes_max: read.small("batch-bytes", 1, 64 * 1024 * 1024).into(),
            dead_blocks,
        },
        attempts_max: i32::try_from(read.small("attempts-max", 1, 1_000_000)).unwrap_or(i32::MAX),
        poll_min,
        poll_max,
        limits: Limits {
            window: read.small("window", 1, 16_384) as usize,
            ack_timeout: read.duration(
                "ack-timeout-seconds",
                Duration::from_secs(1),
                Duration::from_secs(15),
            ),
            batch_timeout: Duration::from_secs(30),
            expected_stream: read.parsed("expected-stream", stream::stream_name),
            atomic_streams: atomic.map(|stream| stream.name.clone()).collect(),
            event_source: read.text("cloud-events-source"),
            large_payloads: large_payloads(read),
            dead_blocks,
            contracts: read.file("contracts", contracts).map(|(_, contracts)| contracts),
        },
    }
}

fn contracts(path: &Path) -> Result<Arc<Contracts>, String> {
    Contracts::read(path).map(Arc::new).map_err(|mistakes| mistakes.to_string())
}

fn on_dead(text: &str) -> Result<bool, String> {
    match text {
        "block" => Ok(true),
        "skip" => Ok(false),
        other => Err(format!("{other:?} is neither \"block\" nor \"skip\"")),
    }
}

/// The URL of a collector, below which OTLP over HTTP has one for traces and one for metrics.
fn otlp_endpoint(text: &str) -> Result<String, String> {
    let parsed = text.parse::<hyper::Uri>().ok();
    let authority =
        parsed.as_ref().filter(|url| url.scheme_str() == Some("http")).and_then(|url| url.authority());
    let is_plain = !text.contains(['?', '#']);
    match authority {
        Some(host) if is_plain && !host.host().is_empty() && !host.as_str().contains('@') => {
            Ok(text.trim_end_matches('/').to_owned())
        }
        // Not shown: it may hold a password.
        _ => Err("is not a URL like http://HOST:4318, without user, query or TLS; a collector on this host can add \
                  these on the way to others"
            .to_owned()),
    }
}

fn sleep_after(text: &str) -> Result<Option<Duration>, String> {
    match text {
        "off" => Ok(None),
        text => match humantime::parse_duration(text) {
            Ok(time) if (Duration::from_secs(1)..=DAY).contains(&time) => Ok(Some(time)),
            _ => Err(format!("{text:?} is neither \"off\" nor a time from 1s to 1d, such as 5m")),
        },
    }
}

fn sleep_at_most(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if (Duration::from_secs(60)..=DAY).contains(&time) => Ok(time),
        _ => Err(format!("{text:?} is not a time from 1m to 1d, such as 15m")),
    }
}

fn lifetime(text: &str) -> Result<Duration, String> {
    time(text).ok_or_else(|| format!("{text:?} is not a time {TIMES}, such as 36h or 7d"))
}

const TIMES: &str = "from 1m to 3650d";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn time(text: &str) -> Option<Duration> {
    let time = humantime::parse_duration(text).ok()?;
    (Duration::from_secs(60)..=3650 * DAY).contains(&time).then_some(time)
}

/// Whether a name stands for this machine, without a question to the network.
fn is_here(host: &str) -> bool {
    host == "localhost"
        || host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Sets the sockets' timeouts, without which a dead host would hang a connection for hours.
fn bound_sockets(config: &mut tokio_postgres::Config) {
    config
        .connect_timeout(Duration::from_secs(5))
        .keepalives_idle(Duration::from_secs(10))
        .keepalives_interval(Duration::from_secs(5))
        .keepalives_retries(3)
        .tcp_user_timeout(Duration::from_secs(20));
}

#[cfg(test)]
mod tests;
