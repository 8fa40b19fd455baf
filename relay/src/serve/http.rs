//! `/livez`, `/readyz` and `/metrics`.

use std::time::Duration;

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use hyper_util::service::TowerToHyperService;
use oncebox_connect::http;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::databases::Databases;

const LIMITS: http::Limits = http::Limits { connections_max: 64, life: Duration::from_secs(60) };

/// Serves until shutdown.
pub(super) async fn serve(listener: TcpListener, databases: Databases, shutdown: CancellationToken) {
    let router = Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(scrape))
        .with_state(databases);
    let service = |_| TowerToHyperService::new(router.clone());
    http::serve(listener, LIMITS, service, shutdown).await;
}

async fn livez(State(databases): State<Databases>) -> Response {
    answer(databases.stuck().map(|problem| (problem, true)))
}

/// While some of several databases work, the process is ready: the others are named.
async fn readyz(State(databases): State<Databases>) -> Response {
    answer(databases.not_ready())
}

fn answer(problem: Option<(String, bool)>) -> Response {
    match problem {
        Some((reason, true)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
        Some((reason, false)) => format!("not all are ready: {reason}\n").into_response(),
        None => "ok\n".into_response(),
    }
}

async fn scrape(State(databases): State<Databases>) -> Response {
    match databases.scrape().await {
        Ok(text) => ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
            .into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
