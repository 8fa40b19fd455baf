//! Ends the sessions of relays that read no more.
//!
//! A relay that is suspended while PostgreSQL sends it an answer keeps its lanes locked: PostgreSQL
//! waits for it without a limit. Over TCP the session has one (`begin.sql`). On Unix sockets there
//! is none, so every relay of an outbox looks for such sessions now and then.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::{error::error_chain, postgres::Store};

/// Between two looks of a relay in a fleet of a few.
const EVERY: Duration = Duration::from_secs(4);
/// A look takes no longer.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// Looks until shutdown.
pub(crate) async fn run(store: Arc<Store>, shutdown: CancellationToken) {
    while shutdown.run_until_cancelled(sleep(store.fleet.pause(EVERY))).await.is_some() {
        match store.in_turn(LOOK_MAX, store.end_unread()).await {
            Ok(Ok(ended)) => {
                for pid in ended {
                    warn!(
                        pid,
                        "a session held lanes and read nothing more of its answer: it is ended; see whether its process is \
                         suspended"
                    );
                }
            }
            // The workers report that PostgreSQL is away.
            Ok(Err(error)) => debug!(error = %error_chain(&error), "look for sessions that read no more"),
            Err(_) => debug!("a look for sessions that read no more took too long"),
        }
    }
}
