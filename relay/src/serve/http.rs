//! `/livez`, `/readyz` and `/metrics`.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{postgres::Store, telemetry::metrics::Metrics};

/// A scrape waits so long for the database; then the gauges have their last values.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(5);
/// Scrapes within this time share a reading.
const FRESH: Duration = Duration::from_secs(1);
/// The server ends each of its statements before that.
const READ_TIMEOUT: Duration = Duration::from_secs(70);

/// When the gauges were last asked for, successfully or not.
type Asked = Option<Instant>;

struct Shared {
    /// Asks for a reading; one request stands for all.
    want: mpsc::Sender<()>,
    asked: watch::Receiver<Asked>,
    metrics: Metrics,
    registry: Registry,
    stuck_after: Duration,
}

/// Serves until shutdown. The store is for the gauges alone: its connection is none of those that
/// deliver.
pub(crate) async fn serve(
    listener: TcpListener,
    store: Arc<Store>,
    metrics: Metrics,
    stuck_after: Duration,
    shutdown: CancellationToken,
) {
    let registry = metrics.registry();
    let (want, wanted) = mpsc::channel(1);
    let (answered, asked) = watch::channel(None);
    let reading = read(store, metrics.clone(), wanted, answered);
    let shared = Arc::new(Shared { want, asked, metrics, registry, stuck_after });
    let router = Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(scrape))
        .with_state(shared);
    let serving = axum::serve(listener, router).with_graceful_shutdown(shutdown.cancelled_owned());
    tokio::select! {
        served = serving => if let Err(error) = served {
            tracing::error!(%error, "serve HTTP");
        },
        () = reading => {}
    }
}

/// Reads the gauges of the database when they are wanted, one reading at a time and at most one a
/// second, whoever has given up waiting for it. While PostgreSQL does not answer they keep their
/// last values.
async fn read(
    store: Arc<Store>,
    metrics: Metrics,
    mut wanted: mpsc::Receiver<()>,
    answered: watch::Sender<Asked>,
) {
    while wanted.recv().await.is_some() {
        if !is_fresh(*answered.borrow()) {
            match timeout(READ_TIMEOUT, store.lag()).await {
                Ok(Ok(standing)) => metrics.observe(&standing),
                Ok(Err(error)) => tracing::debug!(%error, "read the lag"),
                Err(_) => tracing::debug!("reading the lag took too long"),
            }
        }
        answered.send_replace(Some(Instant::now()));
    }
}

fn is_fresh(asked: Asked) -> bool {
    asked.is_some_and(|at| at.elapsed() < FRESH)
}

async fn livez(State(shared): State<Arc<Shared>>) -> Response {
    answer(shared.metrics.health.stuck(shared.stuck_after))
}

async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    answer(shared.metrics.not_ready())
}

fn answer(problem: Option<String>) -> Response {
    match problem {
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
        None => "ok\n".into_response(),
    }
}

/// The gauges of the database are those of the last second, or the last ones known when PostgreSQL
/// does not answer in time.
async fn scrape(State(shared): State<Arc<Shared>>) -> Response {
    let mut asked = shared.asked.clone();
    if !is_fresh(*asked.borrow_and_update()) {
        // Full: somebody has asked already.
        let _ = shared.want.try_send(());
        let _ = timeout(SCRAPE_TIMEOUT, asked.changed()).await;
    }
    shared.metrics.observe_now();
    let mut text = String::new();
    match encode(&mut text, &shared.registry) {
        Ok(()) => ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
            .into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
