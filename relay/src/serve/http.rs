//! `/livez`, `/readyz` and `/metrics`, of relays and of other programs.

use std::{fmt, time::Duration};

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

const LIMITS: http::Limits = http::Limits { connections_max: 64, life: Duration::from_secs(60) };

/// How a program is, as it tells those that watch it.
pub trait Probed: Clone + Send + Sync + 'static {
    /// Why only a restart of the process may help, if that is so.
    fn stuck(&self) -> Option<String>;

    /// Why it does not do its work, and whether it does none of it.
    fn not_ready(&self) -> Option<(String, bool)>;

    /// Its metrics, in the format of OpenMetrics.
    fn scrape(&self) -> impl Future<Output = Result<String, fmt::Error>> + Send;
}

/// Serves `/livez`, `/readyz` and `/metrics` until shutdown.
pub async fn serve_probes<P: Probed>(listener: TcpListener, probed: P, shutdown: CancellationToken) {
    let router = Router::new()
        .route("/livez", get(livez::<P>))
        .route("/readyz", get(readyz::<P>))
        .route("/metrics", get(scrape::<P>))
        .with_state(probed);
    let service = |_| TowerToHyperService::new(router.clone());
    http::serve(listener, LIMITS, service, shutdown).await;
}

async fn livez<P: Probed>(State(probed): State<P>) -> Response {
    answer(probed.stuck().map(|problem| (problem, true)))
}

/// While some of several databases work, the process is ready: the others are named.
async fn readyz<P: Probed>(State(probed): State<P>) -> Response {
    answer(probed.not_ready())
}

fn answer(problem: Option<(String, bool)>) -> Response {
    match problem {
        Some((reason, true)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
        Some((reason, false)) => format!("not all are ready: {reason}\n").into_response(),
        None => "ok\n".into_response(),
    }
}

async fn scrape<P: Probed>(State(probed): State<P>) -> Response {
    match probed.scrape().await {
        Ok(text) => ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
            .into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
