//! The side of a process that is told to others: HTTP and systemd.

use std::{net::SocketAddr, time::Duration};

use tokio::{net::TcpListener, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{databases::Databases, http, push, systemd::Systemd};
use crate::error::RelayError;

/// The end of a relay waits no longer for systemd to be told, and for the last answers.
const LAST_WORDS_MAX: Duration = Duration::from_secs(1);

/// The tasks that tell how the databases are.
pub(crate) struct Front {
    tasks: JoinSet<()>,
    over: CancellationToken,
}

impl Front {
    /// Serves HTTP until `stop`. Sends the metrics where `otlp` says, and tells systemd, longer:
    /// the drain of the loops is watched as well.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub(crate) async fn open(
        http_listen: Option<SocketAddr>,
        otlp: Option<(String, Duration)>,
        systemd: Option<Systemd>,
        databases: Databases,
        stop: CancellationToken,
    ) -> Result<Self, RelayError> {
        let (mut tasks, over) = (JoinSet::new(), CancellationToken::new());
        if let Some(address) = http_listen {
            let bound = TcpListener::bind(address).await;
            let listener = bound.map_err(|source| RelayError::Listen { address, source })?;
            let address = listener.local_addr().unwrap_or(address);
            info!(%address, "serving /livez, /readyz and /metrics");
            tasks.spawn(http::serve_probes(listener, databases.clone(), stop.clone()));
        }
        if let Some((url, every)) = otlp {
            tasks.spawn(push::push(url, every, databases.clone(), over.clone()));
        }
        if let Some(systemd) = systemd {
            tasks.spawn(systemd.tell(databases, stop, over.clone()));
        }
        Ok(Self { tasks, over })
    }

    /// Runs `delivering` until it ends. Cancels `stop`, on which it drains, when `shutdown`
    /// resolves or a task of this front ends early. Then tells the end.
    ///
    /// # Errors
    /// That of `delivering`, or that a task ended early.
    pub(crate) async fn beside(
        mut self,
        delivering: impl Future<Output = Result<(), RelayError>>,
        stop: CancellationToken,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), RelayError> {
        tokio::pin!(delivering);
        let ended = tokio::select! {
            ended = &mut delivering => ended,
            () = shutdown => {
                stop.cancel();
                delivering.await
            }
            () = self.broken() => {
                stop.cancel();
                let _ = delivering.await;
                Err(RelayError::TaskEnded)
            }
        };
        stop.cancel();
        self.close().await;
        ended
    }

    /// Resolves when one of its tasks ended early.
    pub(crate) async fn broken(&mut self) {
        if self.tasks.join_next().await.is_none() {
            std::future::pending().await
        }
    }

    /// Tells the end.
    pub(crate) async fn close(mut self) {
        self.over.cancel();
        let _ = timeout(LAST_WORDS_MAX, async { while self.tasks.join_next().await.is_some() {} }).await;
    }
}
