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
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::{
    net::TcpListener,
    sync::{Semaphore, mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{postgres::Store, telemetry::metrics::Metrics};

/// A scrape waits so long for the database; then the gauges have their last values.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(5);
/// Scrapes within this time share a reading.
const FRESH: Duration = Duration::from_secs(1);
/// The server ends each of its statements before that.
const READ_TIMEOUT: Duration = Duration::from_secs(70);

/// Connections at a time; who comes later waits.
const CONNECTIONS_MAX: usize = 64;
/// The head of a request must arrive within this time.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection is closed after this time, once it has its answer, at the latest a little later.
const CONNECTION_LIFE: Duration = Duration::from_secs(60);
const LAST_ANSWER: Duration = Duration::from_secs(10);
/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
    tokio::select! {
        () = accept(listener, router, shutdown) => {}
        () = reading => {}
    }
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

/// Reads the gauges of the database when they are wanted, one reading at a time and at most one a
/// second. A reading goes on when the client that waits for it gives up. While PostgreSQL does not
/// answer they keep their last values.
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
