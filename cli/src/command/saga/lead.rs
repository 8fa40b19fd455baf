//! `oncebox saga apply | run | start`: files of sagas, and the sagas that they define.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow, ensure};
use clap::{Arg, ArgMatches, Command};
use oncebox_connect::{
    config::{Config, ConfigError, OutboxConfig},
    nats::{Server, is_connected},
    postgres::{connect_postgres, pool, shares_backends},
};
use oncebox_inbox::Consumer;
use oncebox_saga::Orchestrator;
use oncebox_schema::Subject;
use serde::de::IgnoredAny;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    super::{output, relay},
    file::{Named, files, read_all},
    health::{Health, serve},
};

const LISTEN: &str = "Where /livez, /readyz and /metrics are served, such as 0.0.0.0:9465 [default: nowhere]";
const NATS_MAX: Duration = Duration::from_secs(10);

pub(super) fn apply() -> Command {
    Command::new("apply")
        .about("Write files of sagas down in the database, so that programs can start them")
        .arg(files())
        .args(orchestrator())
}

pub(super) fn run() -> Command {
    let option = |name, value, help| Arg::new(name).long(name).value_name(value).help(help);
    let concurrency = option("concurrency", "N", "How many answers are handled at a time; 1 to 64")
        .value_parser(clap::value_parser!(u32).range(1..=64))
        .default_value("8");
    let letters = "The subject, perhaps with wildcards, where participants in Rust publish dead letters";
    let retention =
        "How long finished sagas are kept, such as 90d; a business id is free again then [default: for ever]";
    Command::new("run")
        .about("Lead the sagas of these files, until a signal; run it in any number of processes")
        .arg(files())
        .args(orchestrator())
        .arg(option("dead-letters", "SUBJECT", letters))
        .arg(option("retention", "TIME", retention).value_parser(humantime::parse_duration))
        .arg(concurrency)
        .arg(option("http-listen", "IP:PORT", LISTEN).value_parser(clap::value_parser!(SocketAddr)))
}

pub(super) fn start() -> Command {
    let version =
        Arg::new("version").long("of-version").value_name("N").value_parser(clap::value_parser!(i32));
    let given = |name, value, help| Arg::new(name).value_name(value).required(true).help(help);
    Command::new("start")
        .about("Start one saga of a file by hand, in a transaction of its own")
        .arg(given("type", "TYPE", "The name of the saga in its file"))
        .arg(given("id", "BUSINESS_ID", "What it is about; once for each type"))
        .arg(given("data", "JSON", "The data that it starts with, an object").value_parser(whole))
        .arg(version.help("The version of the file [default: the newest that was applied]"))
}

/// The text itself is passed on: read as a value, its numbers would lose digits.
fn whole(text: &str) -> Result<String, String> {
    let read = serde_json::from_str::<IgnoredAny>(text).map_err(|error| format!("it is not JSON: {error}"));
    read.map(|_| text.to_owned())
}

/// The options by which all processes of one orchestrator are the same.
fn orchestrator() -> [Arg; 2] {
    let option = |name, value, help| Arg::new(name).long(name).value_name(value).help(help);
    let scope = "The name of the orchestrator; never rename it while sagas are under way";
    let reply_to = "The subject that participants answer to; a stream has to take it";
    [
        option("scope", "SCOPE", scope).default_value("saga"),
        option("reply-to", "SUBJECT", reply_to)
            .value_parser(clap::value_parser!(Subject))
            .default_value("sagas.replies"),
    ]
}

/// Files to be led.
pub(crate) struct Lead {
    files: Vec<Named>,
    scope: String,
    reply_to: Subject,
    dead_letters: Option<String>,
    concurrency: usize,
    retention: Option<Duration>,
    listen: Option<SocketAddr>,
}

/// A saga to be started.
pub(crate) struct Start {
    saga_type: String,
    id: String,
    data: String,
    version: Option<i32>,
}

impl Lead {
    /// # Errors
    /// Every mistake in the files.
    pub(crate) fn new(flags: &ArgMatches) -> Result<Self, ConfigError> {
        let given = |name| flags.try_get_one::<String>(name).ok().flatten().cloned();
        let concurrency = flags.try_get_one::<u32>("concurrency").ok().flatten().copied().unwrap_or(1);
        let retention = flags.try_get_one::<Duration>("retention").ok().flatten().copied();
        let reply_to = flags.get_one::<Subject>("reply-to").cloned();
        Ok(Self {
            files: read_all(flags).map_err(ConfigError)?,
            scope: given("scope").unwrap_or_default(),
            reply_to: reply_to.ok_or_else(|| ConfigError(vec!["--reply-to is needed".to_owned()]))?,
            dead_letters: given("dead-letters"),
            concurrency: concurrency as usize,
            retention,
            listen: flags.try_get_one::<SocketAddr>("http-listen").ok().flatten().copied(),
        })
    }

    fn orchestrator(&self, config: &OutboxConfig, is_pooled: bool) -> anyhow::Result<Orchestrator> {
        let mut builder = Orchestrator::builder(self.reply_to.clone())
            .schema(config.schema().clone())
            .scope(&self.scope)
            .leave_missing();
        if let Some(retention) = self.retention {
            builder = builder.retention(retention);
        }
        if is_pooled {
            builder = builder.behind_pooler();
        }
        Ok(self.files.iter().fold(builder, |builder, file| builder.file(&file.saga)).build()?)
    }

    fn names(&self) -> String {
        let graphs = self.files.iter().map(|file| file.saga.graph());
        let names = graphs.map(|graph| format!("{:?}, version {}", graph.name(), graph.version()));
        names.collect::<Vec<_>>().join("; ")
    }

    pub(crate) async fn apply(self, config: &OutboxConfig) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        let client = connect_postgres(config, &mut tasks).await?;
        self.orchestrator(config, true)?.register(&client).await?;
        output::print(&format!("applied {}\n", self.names()))?;
        Ok(())
    }

    pub(crate) async fn run(self, config: &Config) -> anyhow::Result<()> {
        let signal = relay::shutdown_signal("the orchestrator")?;
        let mut outbox = config.outbox().clone();
        outbox.database = outbox.database.of_saga();
        let mut tasks = JoinSet::new();
        let one = connect_postgres(&outbox, &mut tasks).await?;
        let other = connect_postgres(&outbox, &mut tasks).await?;
        let orchestrator = self.orchestrator(&outbox, shares_backends(&one, &other).await)?;
        orchestrator.check(&one).await?;
        drop((one, other));
        let jetstream = Server::connect_lasting(config, "oncebox saga run", NATS_MAX).await?;
        let subject = self.reply_to.as_str();
        let stream = jetstream.stream_by_subject(subject).await.map_err(|error| {
            anyhow!(
                "no stream takes the answers of participants, subject {subject:?} ({error}): make one, for example \
                 with `oncebox relay --stream SAGAS={subject}`"
            )
        })?;
        let consumer = |stream: &str, kind: &str| {
            Consumer::new(jetstream.clone(), stream, format!("oncebox-{}-{kind}", durable(&self.scope)))
                .concurrency(self.concurrency)
        };
        let replies = consumer(&stream, "replies").filter_subject(subject);
        let letters = match &self.dead_letters {
            None => None,
            Some(subject) => {
                let stream = jetstream.stream_by_subject(subject).await;
                let stream = stream.with_context(|| format!("no stream takes dead letters, {subject:?}"))?;
                Some(consumer(&stream, "dead-letters").filter_subject(subject))
            }
        };
        tracing::info!(scope = self.scope, stream, reply_to = subject, "leading sagas: {}", self.names());
        let both = if letters.is_some() { 2 } else { 1 };
        let pool = pool(&outbox.database, both * self.concurrency + 1);
        let shutdown = CancellationToken::new();
        let nats = jetstream.clone();
        let health = Health {
            orchestrator: orchestrator.clone(),
            is_connected: Arc::new(move || is_connected(&nats)),
        };
        let served = async {
            let served = serve(self.listen, health, shutdown.clone()).await;
            if served.is_err() {
                shutdown.cancel();
            }
            served
        };
        let ended = async {
            let ended = orchestrator.run(pool, replies, letters, shutdown.clone()).await;
            shutdown.cancel();
            ended
        };
        let stopping = async {
            tokio::select! {
                () = signal => shutdown.cancel(),
                () = shutdown.cancelled() => {}
            }
        };
        let (ended, (), served) = tokio::join!(Box::pin(ended), stopping, served);
        ended?;
        served
    }
}

/// The part of a durable consumer's name; a scope may have dots and blanks, which it must not.
fn durable(scope: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '-' };
    scope.chars().map(plain).collect()
}

impl Start {
    pub(crate) fn new(flags: &ArgMatches) -> Self {
        let text = |name| flags.get_one::<String>(name).cloned().unwrap_or_default();
        let version = flags.get_one::<i32>("version").copied();
        Self { saga_type: text("type"), id: text("id"), data: text("data"), version }
    }

    pub(crate) async fn run(self, config: &OutboxConfig) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        let client = connect_postgres(config, &mut tasks).await?;
        oncebox_schema::check_version(&client, config.schema()).await?;
        let sql = config.schema().sql(include_str!("start.sql"));
        let rows = client.query(&sql, &[&self.saga_type, &self.id, &self.data, &self.version]).await?;
        let row = rows.first();
        ensure!(row.is_some(), "PostgreSQL returned no saga");
        let (key, is_new): (String, bool) =
            row.map(|row| (row.get("key"), row.get("is_new"))).unwrap_or_default();
        let word = if is_new { "started" } else { "was started before:" };
        output::print(&format!("{word} {key}\n"))?;
        Ok(())
    }
}
