//! Serving HTTP: a bounded number of connections, each for a bounded time.

use std::{error::Error, net::SocketAddr, sync::Arc, time::Duration};

use hyper::{
    Request, Response,
    body::{Body, Incoming},
    server::conn::http1,
    service::Service,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::TcpListener,
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// The head of a request must arrive within this time.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection that is told to end gets its last answer within this time.
const LAST_ANSWER: Duration = Duration::from_secs(10);
/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The bounds of a listener.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a caller gives all of them")]
pub struct Limits {
    /// Connections at a time; who comes later waits.
    pub connections_max: usize,
    /// A connection is closed after this time, once it has its answer, at the latest ten seconds
    /// later.
    pub life: Duration,
}

/// Serves connections until shutdown, each with the service that is made for its peer.
pub async fn serve<S, B>(
    listener: TcpListener,
    limits: Limits,
    service_for: impl Fn(SocketAddr) -> S,
    shutdown: CancellationToken,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Future: Send> + Send + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let (permits, mut connections) = (Arc::new(Semaphore::new(limits.connections_max)), JoinSet::new());
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
            Ok((stream, peer)) => {
                let serving = builder.serve_connection(TokioIo::new(stream), service_for(peer));
                let shutdown = shutdown.clone();
                connections.spawn(async move {
                    let _permit = permit;
                    tokio::pin!(serving);
                    tokio::select! {
                        _ = &mut serving => return,
                        () = sleep(limits.life) => {}
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
