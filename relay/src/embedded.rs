//! A relay in your own process: it waits for servers that are away when it starts, and shows how it
//! is without a port.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::{
    config::Config,
    error::RelayError,
    relay::{Relay, serving},
    serve::{Database, Databases, Front, http::Probed as _},
    telemetry::Metrics,
};

/// A relay of this process that is not running yet.
///
/// ```no_run
/// # async fn example(config: oncebox_relay::Config) -> Result<(), oncebox_relay::RelayError> {
/// let relay = oncebox_relay::Embedded::new(config);
/// let watch = relay.watch();
/// let running = relay.run(async { tokio::signal::ctrl_c().await.unwrap_or_default() });
/// // Beside it, in a handler of your own server: watch.metrics().await, watch.not_ready()
/// # drop(watch);
/// running.await
/// # }
/// ```
#[derive(Debug)]
pub struct Embedded {
    config: Config,
    watch: Watch,
    database: Arc<Database>,
}

/// How a relay of this process is. Clones show the same relay, also before it runs and after.
#[derive(Clone, Debug)]
pub struct Watch(Databases);

impl Embedded {
    /// A relay with this configuration. Nothing is connected or opened.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let databases = Databases::default();
        let database = Arc::new(Database::new(None, Metrics::new(), config.stuck_after));
        databases.add(Arc::clone(&database));
        Self { config, watch: Watch(databases), database }
    }

    /// Shows how the relay is.
    #[must_use]
    pub fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Runs the relay until `shutdown` resolves, then drains it within the configured grace period.
    /// A server that is away, at the start or later, is waited for: at first 50 ms, then up to a
    /// second from one attempt to the next. It is logged once when it goes and once when it is
    /// back.
    ///
    /// # Errors
    /// Errors at the start that waiting does not mend: a refused login, TLS, a missing database,
    /// another version of the schema. An HTTP address that was asked for and cannot be bound.
    /// Afterwards only a grace period that was too short, or a bug of ours.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), RelayError> {
        let Self { config, watch: Watch(databases), database } = self;
        let stop = CancellationToken::new();
        let (listen, otlp) = (config.http_listen, config.otlp_metrics.clone());
        let front = Front::open(listen, otlp, None, databases, stop.clone()).await?;
        // Large, and in the stack of the caller otherwise.
        let delivering = Box::pin(serving::serve(None, config, Arc::clone(&database), stop.clone()));
        let ended = front.beside(delivering, stop, shutdown).await;
        database.down("its relay has ended".to_owned());
        ended
    }
}

impl Watch {
    /// The metrics as text of OpenMetrics, which Prometheus reads, with gauges of the last second.
    /// Serve it with the content type `application/openmetrics-text; version=1.0.0; charset=utf-8`.
    /// While PostgreSQL does not answer, this takes up to 5 seconds, and the gauges are the last
    /// known ones.
    pub async fn metrics(&self) -> String {
        // Writing to a string fails only if an encoder does, which all tests of metrics would see.
        self.0.scrape().await.unwrap_or_else(|_| "# EOF\n".to_owned())
    }

    /// Why the relay delivers nothing now; `None` while it does.
    #[must_use]
    pub fn not_ready(&self) -> Option<String> {
        self.0.not_ready().map(|(reason, _)| reason)
    }

    /// Why only a restart of the process may help, if that is so.
    #[must_use]
    pub fn stuck(&self) -> Option<String> {
        self.0.stuck()
    }
}

impl Relay {
    /// Runs a relay of this process until `shutdown` resolves; see [`Embedded::run`].
    ///
    /// # Errors
    /// Those of [`Embedded::run`]. A server that is away is none: the relay waits for it.
    pub async fn run(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), RelayError> {
        Embedded::new(config).run(shutdown).await
    }
}
