//! Keeps a connection to NATS, a new one whenever one is over, and on each the declared streams.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};
use tracing::{debug, info, warn};

use super::{
    connection::{Connection, Server},
    streams,
};
use crate::{backoff::AWAY, error::error_chain, telemetry::Metrics};

/// A connection that ends sooner than this never worked.
const SHORT: Duration = Duration::from_secs(10);
/// This number of such connections in a row are perhaps cut because of a message's size, though the
/// server's error did not arrive.
const SHORT_MAX: u32 = 2;

/// Keeps a connection in `connections`, beginning with one that is connected already.
pub(crate) async fn maintain(
    server: Server,
    first: Arc<Connection>,
    connections: watch::Sender<Option<Arc<Connection>>>,
    metrics: Metrics,
) {
    let mut connection = first;
    // The last reason that was logged. A connection that ends again for the same reason is not
    // logged again.
    let mut said = None;
    let mut failures = 0;
    loop {
        let (current, since) = (connection, Instant::now());
        connections.send_replace(Some(Arc::clone(&current)));
        metrics.nats_connected.set(1);
        tokio::select! {
            () = current.over.cancelled() => {}
            () = streams::keep(&server.streams, &current) => {}
        }
        connections.send_replace(None);
        metrics.nats_connected.set(0);
        metrics.nats_reconnects.inc();
        let reason = current.reason.get().cloned();
        let lasted = since.elapsed() > SHORT;
        failures = if lasted { 0 } else { failures + 1 };
        let (is_news, was_too_large) = (lasted || said != reason, current.was_too_large());
        match was_too_large {
            _ if !is_news => {}
            true => warn!(
                url = server.url(),
                "NATS has cut the connection, because a message is larger than the max_payload of the account or of the \
                 server; the relay finds the limit out and connects again; the message goes to the object store, if there is one, else it is \
                 set aside"
            ),
            false => warn!(url = server.url(), reason, "NATS is away; no lane is claimed until it is back"),
        }
        said = reason;
        if was_too_large || failures >= SHORT_MAX {
            find_payload_max(&server).await;
        }
        connection = Arc::new(reconnect(&server, &metrics, failures).await);
        match was_too_large {
            _ if !is_news => {}
            true => info!("connected to NATS again, within its max_payload"),
            false => info!("NATS is back"),
        }
    }
}

/// Before the next connection: the message that ended the last one would end it as well.
async fn find_payload_max(server: &Server) {
    match server.find_payload_max().await {
        Ok(None) => {}
        Ok(Some(bytes)) => warn!(
            bytes,
            "the NATS account takes messages of so many bytes, its max_payload, which is less than the server's: larger \
             ones are dead, or go to the bucket of the option object-store"
        ),
        Err(problem) => debug!(problem, "look for the account's max_payload"),
    }
}

async fn reconnect(server: &Server, metrics: &Metrics, mut failures: u32) -> Connection {
    let mut said = false;
    if failures > 0 {
        tokio::time::sleep(AWAY.delay(failures)).await;
    }
    loop {
        match server.connect(metrics).await {
            Ok(connection) => {
                streams::check(&server.streams, &connection).await;
                return connection;
            }
            Err(error) => {
                debug!(%error, failures, "connect to NATS");
                if error.is_refusal() && !std::mem::replace(&mut said, true) {
                    let error = error_chain(&error);
                    warn!(
                        error,
                        "NATS answers, but does not let the relay in; it is tried again until it does"
                    );
                }
            }
        }
        tokio::time::sleep(AWAY.delay(failures)).await;
        failures = failures.saturating_add(1);
    }
}
