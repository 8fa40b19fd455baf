//! Configuration: flags over environment, checked as a whole, all mistakes reported at once.
//!
//! One table, [`OPTIONS`], names every option; the command line, the environment, the checks and the help text
//! come from it. Only this module reads the environment, through a function that tests replace.

mod options;

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use oncebox_schema::SchemaName;

pub use options::{OPTIONS, OptionSpec};

use crate::{publisher::Limits, store::ReadLimits};

/// A validated configuration of one relay. Made by [`Config::from_values`].
#[derive(Clone)]
pub struct Config {
    pub(crate) postgres: tokio_postgres::Config,
    pub(crate) nats_url: String,
    pub(crate) schema: SchemaName,
    pub(crate) workers: usize,
    pub(crate) tuning: Tuning,
    /// `None`: settled messages are kept for ever.
    pub(crate) retention: Option<Duration>,
    pub(crate) http_listen: Option<SocketAddr>,
    pub(crate) grace: Duration,
}

/// What a worker needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Tuning {
    /// Lanes claimed by one pass at most.
    pub(crate) lanes_max: i64,
    /// Payload bytes are rounded up to a whole message.
    pub(crate) read: ReadLimits,
    pub(crate) attempts_max: i32,
    pub(crate) poll_min: Duration,
    pub(crate) poll_max: Duration,
    pub(crate) limits: Limits,
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("postgres", &postgres_target(&self.postgres))
            .field("nats_url", &redacted(&self.nats_url))
            .field("schema", &self.schema)
            .field("workers", &self.workers)
            .field("tuning", &self.tuning)
            .field("retention", &self.retention)
            .field("http_listen", &self.http_listen)
            .field("grace", &self.grace)
            .finish()
    }
}

/// Everything wrong with a configuration, one line each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct ConfigError(pub Vec<String>);

/// What was typed: option name to text.
pub type Values = HashMap<&'static str, String>;

/// Reads the environment through `lookup`, and refuses `ONCEBOX_*` names that are no option.
///
/// # Errors
/// Every unknown name, with the nearest known one.
pub fn from_environment(
    names: impl IntoIterator<Item = String>,
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<Values, ConfigError> {
    let known = |name: &str| OPTIONS.iter().any(|option| option.environment == name);
    let unknown: Vec<String> = names
        .into_iter()
        .filter(|name| name.starts_with("ONCEBOX_") && !name.starts_with("ONCEBOX_TEST_") && !known(name))
        .map(|name| format!("{name} is no option of oncebox{}", suggestion(&name)))
        .collect();
    if !unknown.is_empty() {
        return Err(ConfigError(unknown));
    }
    let given = |option: &'static OptionSpec| Some((option.name, lookup(option.environment)?));
    Ok(OPTIONS.iter().filter_map(given).collect())
}

fn suggestion(name: &str) -> String {
    // The common prefix would make everything similar.
    let likeness = |option: &OptionSpec| {
        strsim::jaro_winkler(
            name.trim_start_matches("ONCEBOX_"),
            option.environment.trim_start_matches("ONCEBOX_"),
        )
    };
    let nearest = OPTIONS.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    let similar = nearest.filter(|option| likeness(option) > 0.75);
    similar.map(|option| format!("; did you mean {}?", option.environment)).unwrap_or_default()
}

/// Collects mistakes while values are taken out.
struct Reader<'a> {
    values: &'a Values,
    mistakes: Vec<String>,
}

impl Reader<'_> {
    /// The text given, or the default; empty counts as not given.
    fn text(&self, name: &str) -> Option<String> {
        let default = || OPTIONS.iter().find(|option| option.name == name).and_then(|option| option.default);
        let given = self.values.get(name).filter(|text| !text.is_empty()).cloned();
        given.or_else(|| default().map(str::to_owned))
    }

    fn mistake(&mut self, name: &str, problem: impl std::fmt::Display) {
        let environment = OPTIONS.iter().find(|o| o.name == name).map_or("", |option| option.environment);
        self.mistakes.push(format!("--{name} ({environment}): {problem}"));
    }

    fn number(&mut self, name: &str, least: u64, most: u64) -> u64 {
        let text = self.text(name).unwrap_or_default();
        match text.parse::<u64>() {
            Ok(number) if (least..=most).contains(&number) => number,
            _ => {
                self.mistake(name, format_args!("{text:?} is not a whole number from {least} to {most}"));
                least
            }
        }
    }

    fn small(&mut self, name: &str, least: u32, most: u32) -> u32 {
        u32::try_from(self.number(name, least.into(), most.into())).unwrap_or(most)
    }

    fn duration(&mut self, name: &str, least: Duration, most: Duration) -> Duration {
        let milliseconds = name.ends_with("milliseconds");
        let unit = if milliseconds { Duration::from_millis } else { Duration::from_secs };
        let count = |d: Duration| if milliseconds { d.as_millis() } else { d.as_secs().into() };
        let bound = |d| u64::try_from(count(d)).unwrap_or(u64::MAX);
        unit(self.number(name, bound(least), bound(most)))
    }

    fn parsed<T>(&mut self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let text = self.text(name)?;
        parse(&text).map_err(|problem| self.mistake(name, problem)).ok()
    }
}

impl Config {
    /// Checks what was typed; see [`OPTIONS`] for names, meaning and defaults.
    ///
    /// # Errors
    /// All mistakes at once, none of which shows a secret.
    pub fn from_values(values: &Values) -> Result<Self, ConfigError> {
        let mut read = Reader { values, mistakes: Vec::new() };
        let postgres = postgres(&mut read);
        let nats_url = nats_url(&mut read);
        let schema =
            read.parsed("schema", |text| text.parse().map_err(|e| format!("{e}"))).unwrap_or_default();
        let tuning = tuning(&mut read);
        let http_listen = read
            .parsed("http-listen", |text| match text {
                "off" => Ok(None),
                address => {
                    address.parse().map(Some).map_err(|_| format!("{address:?} is not IP:PORT or \"off\""))
                }
            })
            .flatten();
        let config = Self {
            postgres,
            nats_url,
            schema,
            workers: read.small("workers", 1, 64) as usize,
            tuning,
            retention: read.parsed("retention", retention).flatten(),
            http_listen,
            grace: read.duration("grace-seconds", Duration::ZERO, Duration::from_secs(600)),
        };
        if read.mistakes.is_empty() { Ok(config) } else { Err(ConfigError(read.mistakes)) }
    }

    /// Host and database, with no secret, for errors and logs.
    #[must_use]
    pub fn postgres_target(&self) -> String {
        postgres_target(&self.postgres)
    }

    /// The NATS URL without user, password or token.
    #[must_use]
    pub fn nats_target(&self) -> String {
        redacted(&self.nats_url)
    }

    /// How long settled messages are kept; `None` is for ever.
    #[must_use]
    pub fn retention(&self) -> Option<Duration> {
        self.retention
    }

    /// What to log, in the syntax of `tracing_subscriber::EnvFilter`.
    #[must_use]
    pub fn log_filter(values: &Values) -> String {
        Reader { values, mistakes: Vec::new() }.text("log").unwrap_or_default()
    }
}

fn tuning(read: &mut Reader<'_>) -> Tuning {
    let milliseconds = Duration::from_millis;
    let poll_min = read.duration("poll-min-milliseconds", milliseconds(1), milliseconds(60_000));
    let poll_max = read.duration("poll-max-milliseconds", milliseconds(1), milliseconds(60_000));
    if poll_min > poll_max {
        read.mistake("poll-min-milliseconds", "is above --poll-max-milliseconds");
    }
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
            expected_stream: read.text("expected-stream"),
            dead_blocks,
        },
    }
}

fn on_dead(text: &str) -> Result<bool, String> {
    match text {
        "block" => Ok(true),
        "skip" => Ok(false),
        other => Err(format!("{other:?} is neither \"block\" nor \"skip\"")),
    }
}

fn retention(text: &str) -> Result<Option<Duration>, String> {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    if text == "forever" {
        return Ok(None);
    }
    // 0 means "for ever" in some programs and "not at all" in others, so it is refused like the rest.
    match humantime::parse_duration(text) {
        Ok(time) if (Duration::from_secs(60)..=3650 * DAY).contains(&time) => Ok(Some(time)),
        _ => Err(format!("{text:?} is neither a time from 1m to 3650d, such as 36h or 7d, nor \"forever\"")),
    }
}

fn postgres(read: &mut Reader<'_>) -> tokio_postgres::Config {
    // A parse error could quote the URL, password and all; so it is not shown.
    let parse = |text: &str| {
        text.parse::<tokio_postgres::Config>()
            .map_err(|_| "is no PostgreSQL URL or connection string".to_owned())
    };
    let Some(mut config) = read.parsed("database-url", parse) else {
        if read.text("database-url").is_none() {
            read.mistake("database-url", "is not set; for example postgres://oncebox@localhost/orders");
        }
        return tokio_postgres::Config::new();
    };
    if config.get_hosts().is_empty() {
        read.mistake("database-url", "names no host");
    }
    if config.get_application_name().is_none() {
        config.application_name("oncebox relay");
    }
    bound_sockets(&mut config);
    config
}

/// Without these a dead host would hang a connection for hours.
pub(crate) fn bound_sockets(config: &mut tokio_postgres::Config) {
    config
        .connect_timeout(Duration::from_secs(5))
        .keepalives_idle(Duration::from_secs(10))
        .keepalives_interval(Duration::from_secs(5))
        .keepalives_retries(3)
        .tcp_user_timeout(Duration::from_secs(20));
}

fn nats_url(read: &mut Reader<'_>) -> String {
    let parse = |text: &str| match text.parse::<async_nats::ServerAddr>() {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("is no NATS URL".to_owned()),
    };
    match read.parsed("nats-url", parse) {
        Some(url) => url,
        None => {
            if read.text("nats-url").is_none() {
                read.mistake("nats-url", "is not set; for example nats://localhost:4222");
            }
            String::new()
        }
    }
}

/// Drops user, password and token from a URL.
pub(crate) fn redacted(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        (None, Some((_, host))) => host.to_owned(),
        (_, None) => url.to_owned(),
    }
}

fn postgres_target(config: &tokio_postgres::Config) -> String {
    use tokio_postgres::config::Host;
    let hosts = config.get_hosts().iter().enumerate().map(|(i, host)| {
        let ports = config.get_ports();
        let port = ports.get(i).or(ports.first()).copied().unwrap_or(5432);
        match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            Host::Unix(path) => format!("{}:{port}", path.display()),
        }
    });
    let hosts: Vec<String> = hosts.collect();
    format!("{}/{}", hosts.join(","), config.get_dbname().or(config.get_user()).unwrap_or_default())
}

#[cfg(test)]
mod tests;
