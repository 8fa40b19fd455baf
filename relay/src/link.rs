//! The connection to NATS: one at a time, replaced rather than left to reconnect.
//!
//! async-nats reconnects by itself, but then publishes that were written to the old socket are gone while later
//! ones still queue, and acknowledgements in flight wait for their full deadline. So a connection that breaks once
//! is over: every worker drops it, and a new one is made. What an old one may still send are copies of what the
//! new one sends, in the same order.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_nats::{Client, ConnectOptions, Event};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{backoff::Backoff, metrics::Metrics};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// With async-nats's two missed pongs, a dead peer is noticed after about this three times.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// Publishes that may wait inside the client; what is there when a connection breaks may be sent late.
const CLIENT_CAPACITY: usize = 1024;
const RECONNECT: Backoff = Backoff { first: Duration::from_millis(50), max: Duration::from_secs(1) };

/// A live connection.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) client: Client,
    /// Cancelled when this connection is over, by the client's own event or by a worker that got no answers.
    pub(crate) over: CancellationToken,
    /// Why, as far as the first to notice can tell.
    reason: Arc<OnceLock<String>>,
}

impl Link {
    /// Gives the connection up; every worker drops it.
    pub(crate) fn end(&self, reason: &dyn std::fmt::Display) {
        let _ = self.reason.set(reason.to_string());
        self.over.cancel();
    }
}

/// Where workers find the link: `None` while NATS is away.
pub(crate) type Links = watch::Receiver<Option<Arc<Link>>>;

/// How to reach NATS. Credentials in the URL never reach a log: [`crate::config`] redacts them.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) name: String,
}

impl Server {
    /// Connects once.
    pub(crate) async fn connect(&self, metrics: &Metrics) -> Result<Link, async_nats::ConnectError> {
        let over = CancellationToken::new();
        let reason = Arc::new(OnceLock::new());
        let (on_event, why, errors) = (over.clone(), Arc::clone(&reason), metrics.clone());
        let client = ConnectOptions::new()
            .name(&self.name)
            .connection_timeout(CONNECT_TIMEOUT)
            .ping_interval(PING_INTERVAL)
            .client_capacity(CLIENT_CAPACITY)
            // Only exhausting the attempts ends the client's task for good; see the module's text.
            .max_reconnects(1)
            .event_callback(move |event| {
                let (over, why, errors) = (on_event.clone(), Arc::clone(&why), errors.clone());
                async move {
                    match event {
                        Event::Connected => {}
                        // The server is about to leave: better to go now than to be cut off in a batch.
                        Event::Disconnected | Event::Closed | Event::Draining | Event::LameDuckMode => {
                            let _ = why.set(event.to_string());
                            over.cancel();
                        }
                        Event::SlowConsumer(_) | Event::ServerError(_) | Event::ClientError(_) => {
                            errors.nats_errors.inc();
                            warn!(%event, "NATS reported an error");
                        }
                    }
                }
            })
            .connect(&self.url)
            .await?;
        Ok(Link { client, over, reason })
    }
}

/// Keeps a link in `links` until shutdown, beginning with one that is connected already.
pub(crate) async fn maintain(
    server: Server,
    first: Link,
    links: watch::Sender<Option<Arc<Link>>>,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
    let mut link = first;
    loop {
        let (over, reason) = (link.over.clone(), Arc::clone(&link.reason));
        links.send_replace(Some(Arc::new(link)));
        metrics.nats_connected.set(1);
        tokio::select! {
            () = over.cancelled() => {}
            () = shutdown.cancelled() => return,
        }
        links.send_replace(None);
        metrics.nats_connected.set(0);
        metrics.nats_reconnects.inc();
        warn!(
            url = %crate::config::redacted(&server.url),
            reason = reason.get().map(String::as_str),
            "NATS is away; no lane is claimed until it is back"
        );
        let reconnected = tokio::select! {
            link = reconnect(&server, &metrics) => link,
            () = shutdown.cancelled() => return,
        };
        link = reconnected;
        info!("NATS is back");
    }
}

async fn reconnect(server: &Server, metrics: &Metrics) -> Link {
    let mut failures = 0;
    loop {
        match server.connect(metrics).await {
            Ok(link) => return link,
            Err(error) => tracing::debug!(%error, failures, "connect to NATS"),
        }
        tokio::time::sleep(RECONNECT.delay(failures)).await;
        failures = failures.saturating_add(1);
    }
}
