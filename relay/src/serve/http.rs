//! `/livez`, `/readyz` and `/metrics`.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::TcpListener,
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::databases::Databases;

/// Connections at a time; who comes later waits.
const CONNECTIONS_MAX: usize = 64;
/// The head of a request must arrive within this time.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection is closed after this time, once it has its answer, at the latest a little later.
const CONNECTION_LIFE: Duration = Duration::from_secs(60);
const LAST_ANSWER: Duration = Duration::from_secs(10);
/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until shutdown.
pub(super) async fn serve(listener: TcpListener, databases: Databases, shutdown: CancellationToken) {
    let router = Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(scrape))
        .with_state(databases);
    accept(listener, router, shutdown).await;
}

/// Takes connections until shutdown, a bounded number at a time and each for a bounded time.
async fn accept(listener: TcpListener, router: Router, shutdown: CancellationToken) {
    let (permits, mut connections) = (Arc::new(Semaphore::new(CONNECTIONS_MAX)), JoinSet::new());
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    loop {
        let accepting = async {
            let permit = Arc::clone(&permits).acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            accepted = accepting => accepted,
            () = shutdown.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let service = TowerToHyperService::new(router.clone());
                let serving = builder.serve_connection(TokioIo::new(stream), service);
                let shutdown = shutdown.clone();
                connections.spawn(async move {
                    let _permit = permit;
                    tokio::pin!(serving);
                    tokio::select! {
                        _ = &mut serving => return,
                        () = sleep(CONNECTION_LIFE) => {}
                        () = shutdown.cancelled() => {}
                    }
                    serving.as_mut().graceful_shutdown();
                    let _ = timeout(LAST_ANSWER, serving).await;
                });
            }
            // Too many open files, or a client that has gone.
            Err(error) => {
                tracing::debug!(%error, "accept a connection for HTTP");
                sleep(ACCEPT_PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    while connections.join_next().await.is_some() {}
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
