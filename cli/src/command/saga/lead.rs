//! `oncebox saga apply | run | start`: files of sagas, and the sagas that they define.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow, ensure};
use oncebox_connect::{
    config::{ConfigError, OutboxConfig},
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
    super::{On, Run, output, relay},
    file::{Files, Named, read_all},
    health::{Health, serve},
};

const NATS_MAX: Duration = Duration::from_secs(10);

// The sagas that are led, and where they are answered.
#[derive(clap::Args)]
struct Led {
    #[command(flatten)]
    files: Files,
    #[arg(skip)]
    sagas: Vec<Named>,
    /// The name of the orchestrator; never rename it while sagas are under way
    #[arg(long, value_name = "SCOPE", default_value = "saga")]
    scope: String,
    /// The subject that participants answer to; a stream has to take it
    #[arg(long, value_name = "SUBJECT", default_value = "sagas.replies")]
    reply_to: Subject,
}

/// Write files of sagas down in the database, so that programs can start them
#[derive(clap::Args)]
pub(crate) struct Apply {
    #[command(flatten)]
    led: Led,
}

/// Lead the sagas of these files, until a signal; run it in any number of processes
#[derive(clap::Args)]
pub(crate) struct Lead {
    #[command(flatten)]
    led: Led,
    /// The subject, perhaps with wildcards, where participants in Rust publish dead letters
    #[arg(long, value_name = "SUBJECT")]
    dead_letters: Option<String>,
    /// How long finished sagas are kept, such as 90d; a business id is free again then [default:
    /// for ever]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    retention: Option<Duration>,
    /// How many answers are handled at a time; 1 to 64
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u32).range(1..=64))]
    concurrency: u32,
    /// Where /livez, /readyz and /metrics are served, such as 0.0.0.0:9465 [default: nowhere]
    #[arg(long, value_name = "IP:PORT")]
    http_listen: Option<SocketAddr>,
}

/// Start one saga of a file by hand, in a transaction of its own
#[derive(clap::Args)]
pub(crate) struct Start {
    /// The name of the saga in its file
    #[arg(id = "type", value_name = "TYPE")]
    saga_type: String,
    /// What it is about; once for each type
    #[arg(value_name = "BUSINESS_ID")]
    id: String,
    /// The data that it starts with, an object
    #[arg(value_name = "JSON", value_parser = whole)]
    data: String,
    /// The version of the file [default: the newest that was applied]
    #[arg(long = "of-version", value_name = "N")]
    version: Option<i32>,
}

/// The text itself is passed on: read as a value, its numbers would lose digits.
fn whole(text: &str) -> Result<String, String> {
    let read = serde_json::from_str::<IgnoredAny>(text).map_err(|error| format!("it is not JSON: {error}"));
    read.map(|_| text.to_owned())
}

/// The options by which all processes of one orchestrator are the same.
impl Led {
    /// # Errors
    /// Every mistake in the files.
    fn read(self) -> Result<Self, ConfigError> {
        Ok(Self { sagas: read_all(&self.files).map_err(ConfigError)?, ..self })
    }

    fn orchestrator(
        &self,
        config: &OutboxConfig,
        is_pooled: bool,
        retention: Option<Duration>,
    ) -> anyhow::Result<Orchestrator> {
        let mut builder = Orchestrator::builder(self.reply_to.clone())
            .schema(config.schema().clone())
            .scope(&self.scope)
            .leave_missing();
        if let Some(retention) = retention {
            builder = builder.retention(retention);
        }
        if is_pooled {
            builder = builder.behind_pooler();
        }
        Ok(self.sagas.iter().fold(builder, |builder, file| builder.file(&file.saga)).build()?)
    }

    fn names(&self) -> String {
        let graphs = self.sagas.iter().map(|file| file.saga.graph());
        let names = graphs.map(|graph| format!("{:?}, version {}", graph.name(), graph.version()));
        names.collect::<Vec<_>>().join("; ")
    }
}

impl Apply {
    pub(crate) fn read(self) -> Result<Self, ConfigError> {
        Ok(Self { led: self.led.read()? })
    }
}

impl Run for Apply {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        let mut tasks = JoinSet::new();
        let client = connect_postgres(&on.outbox, &mut tasks).await?;
        self.led.orchestrator(&on.outbox, true, None)?.register(&client).await?;
        output::end(&format!("applied {}\n", self.led.names()))
    }
}

impl Lead {
    pub(crate) fn read(self) -> Result<Self, ConfigError> {
        Ok(Self { led: self.led.read()?, ..self })
    }
}

impl Run for Lead {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        let (config, led, concurrency) = (on.config(), &self.led, self.concurrency as usize);
        let signal = relay::shutdown_signal("the orchestrator")?;
        let mut outbox = config.outbox().clone();
        outbox.database = outbox.database.of_saga();
        let mut tasks = JoinSet::new();
        let one = connect_postgres(&outbox, &mut tasks).await?;
        let other = connect_postgres(&outbox, &mut tasks).await?;
        let orchestrator = led.orchestrator(&outbox, shares_backends(&one, &other).await, self.retention)?;
        orchestrator.check(&one).await?;
        drop((one, other));
        let jetstream = Server::connect_lasting(config, "oncebox saga run", NATS_MAX).await?;
        let subject = led.reply_to.as_str();
        let stream = jetstream.stream_by_subject(subject).await.map_err(|error| {
            anyhow!(
                "no stream takes the answers of participants, subject {subject:?} ({error}): make one, for example \
                 with `oncebox relay --stream SAGAS={subject}`"
            )
        })?;
        let consumer = |stream: &str, kind: &str| {
            Consumer::new(jetstream.clone(), stream, format!("oncebox-{}-{kind}", durable(&led.scope)))
                .concurrency(concurrency)
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
        tracing::info!(scope = led.scope, stream, reply_to = subject, "leading sagas: {}", led.names());
        let both = if letters.is_some() { 2 } else { 1 };
        let pool = pool(&outbox.database, both * concurrency + 1);
        let shutdown = CancellationToken::new();
        let nats = jetstream.clone();
        let health = Health {
            orchestrator: orchestrator.clone(),
            is_connected: Arc::new(move || is_connected(&nats)),
        };
        let served = async {
            let served = serve(self.http_listen, health, shutdown.clone()).await;
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
        served.map(|()| 0)
    }
}

/// The part of a durable consumer's name; a scope may have dots and blanks, which it must not.
fn durable(scope: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '-' };
    scope.chars().map(plain).collect()
}

impl Run for Start {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        let config = &on.outbox;
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
        output::end(&format!("{word} {key}\n"))
    }
}
