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
use tokio::{net::TcpListener, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{metrics::Metrics, store::Store};

const SCRAPE_TIMEOUT: Duration = Duration::from_secs(5);

struct Shared {
    store: Arc<Store>,
    metrics: Metrics,
    registry: Registry,
    stuck_after: Duration,
}

/// Serves until shutdown.
pub(crate) async fn serve(
    listener: TcpListener,
    store: Arc<Store>,
    metrics: Metrics,
    stuck_after: Duration,
    shutdown: CancellationToken,
) {
    let registry = metrics.registry();
    let shared = Arc::new(Shared { store, metrics, registry, stuck_after });
    let router = Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(scrape))
        .with_state(shared);
    let served = axum::serve(listener, router).with_graceful_shutdown(shutdown.cancelled_owned()).await;
    if let Err(error) = served {
        tracing::error!(%error, "serve HTTP");
    }
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

/// The gauges of the database are read now; when PostgreSQL does not answer they keep their last values.
async fn scrape(State(shared): State<Arc<Shared>>) -> Response {
    match timeout(SCRAPE_TIMEOUT, shared.store.lag()).await {
        Ok(Ok((lanes, parked))) => shared.metrics.observe_lag(&lanes, parked),
        Ok(Err(error)) => tracing::debug!(%error, "read the lag"),
        Err(_) => tracing::debug!("reading the lag took too long"),
    }
    shared.metrics.observe_now();
    let mut text = String::new();
    match encode(&mut text, &shared.registry) {
        Ok(()) => ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
            .into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
