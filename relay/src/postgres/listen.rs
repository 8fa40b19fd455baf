//! NOTIFY as a hint: polling remains the truth.
//!
//! A connection of its own, since a pool discards notifications. Behind a transaction pooler LISTEN
//! cannot work; that is noticed at start, or tested here, said once, and then the relay polls.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};
use tokio::{sync::watch, time::timeout};
use tokio_postgres::AsyncMessage;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::{Store, connect::Connector};
use crate::backoff::Backoff;

const TEST: &str = "test";
const TEST_TIMEOUT: Duration = Duration::from_secs(3);
const RECONNECT: Backoff = Backoff { first: Duration::from_millis(500), max: Duration::from_secs(30) };

/// Counts wake-ups into `wake` until shutdown. Losing this connection costs latency, never a
/// message.
pub(crate) async fn listen(
    connector: Connector,
    store: Arc<Store>,
    wake: watch::Sender<u64>,
    shutdown: CancellationToken,
) {
    let mut failures = 0;
    if store.is_pooled() {
        // To LISTEN would leave a session listening that belongs to others.
        shutdown.cancelled().await;
        return;
    }
    loop {
        let ended = tokio::select! {
            ended = listen_once(&connector, &store, &wake) => ended,
            () = shutdown.cancelled() => return,
        };
        match ended {
            Ended::Deaf => {
                info!("LISTEN does not work here; the relay polls");
                store.note_pooler();
                shutdown.cancelled().await;
                return;
            }
            Ended::Lost(worked) => failures = if worked { 0 } else { failures + 1 },
        }
        tokio::select! {
            () = tokio::time::sleep(RECONNECT.delay(failures)) => {}
            () = shutdown.cancelled() => return,
        }
    }
}

enum Ended {
    /// Connected, but no notification arrives.
    Deaf,
    /// The connection broke, or could not be made; whether it had worked.
    Lost(bool),
}

async fn listen_once(connector: &Connector, store: &Store, wake: &watch::Sender<u64>) -> Ended {
    let connecting = timeout(connector.connect_timeout(), connector.connect()).await;
    let Ok(Ok((client, mut connection))) = connecting else { return Ended::Lost(false) };
    let mut messages = stream::poll_fn(move |context| connection.poll_message(context)).boxed();
    let channel = store.schema();
    let listen = format!("LISTEN \"{channel}\"");
    let test = async {
        if client.batch_execute(&listen).await.is_err() || store.notify(TEST).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::pin!(test);
    let mut tested = false;
    let mut heard = false;
    loop {
        let message = tokio::select! {
            () = &mut test, if !tested => { tested = true; continue }
            message = timeout(TEST_TIMEOUT, messages.next()) => message,
        };
        match message {
            Ok(Some(Ok(AsyncMessage::Notification(notification)))) => {
                debug!(payload = notification.payload(), "notified");
                heard = true;
                wake.send_modify(|count| *count = count.wrapping_add(1));
            }
            Ok(Some(Ok(_))) => {}
            Ok(Some(Err(_)) | None) => return Ended::Lost(heard),
            Err(_) if !heard => return if tested { Ended::Deaf } else { Ended::Lost(false) },
            Err(_) => {}
        }
    }
}
