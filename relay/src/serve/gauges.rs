//! The gauges that a scrape reads from a database.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    time::{Instant, timeout},
};

use crate::{postgres::Store, telemetry::Metrics};

/// A scrape waits so long for the database; then the gauges have their last values.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(5);
/// Scrapes within this time share a reading.
const FRESH: Duration = Duration::from_secs(1);
/// The server ends each of its statements before that.
const READ_TIMEOUT: Duration = Duration::from_secs(70);

/// When the gauges were last asked for, successfully or not.
type Asked = Option<Instant>;

/// Asks for readings.
#[derive(Clone, Debug)]
pub(crate) struct Gauges {
    /// One request stands for all.
    want: mpsc::Sender<()>,
    asked: watch::Receiver<Asked>,
}

/// Makes readings.
#[derive(Debug)]
pub(crate) struct Reader {
    wanted: mpsc::Receiver<()>,
    answered: watch::Sender<Asked>,
}

pub(crate) fn gauges() -> (Gauges, Reader) {
    let (want, wanted) = mpsc::channel(1);
    let (answered, asked) = watch::channel(None);
    (Gauges { want, asked }, Reader { wanted, answered })
}

impl Gauges {
    /// Afterwards the gauges are those of the last second, or the last ones known when PostgreSQL
    /// does not answer in time.
    pub(super) async fn refresh(&self) {
        let mut asked = self.asked.clone();
        if !is_fresh(*asked.borrow_and_update()) {
            // Full: somebody has asked already.
            let _ = self.want.try_send(());
            let _ = timeout(SCRAPE_TIMEOUT, asked.changed()).await;
        }
    }
}

impl Reader {
    /// Reads the gauges of the database when they are wanted, one reading at a time and at most one
    /// a second. A reading goes on when the client that waits for it gives up. While PostgreSQL
    /// does not answer they keep their last values.
    pub(crate) async fn run(mut self, store: Arc<Store>, metrics: Metrics) {
        while self.wanted.recv().await.is_some() {
            if !is_fresh(*self.answered.borrow()) {
                match store.in_turn(READ_TIMEOUT, store.lag()).await {
                    Ok(Ok(standing)) => metrics.observe(&standing),
                    Ok(Err(error)) => tracing::debug!(%error, "read the lag"),
                    Err(_) => tracing::debug!("reading the lag took too long"),
                }
            }
            self.answered.send_replace(Some(Instant::now()));
        }
        // Nobody serves HTTP.
        std::future::pending().await
    }
}

fn is_fresh(asked: Asked) -> bool {
    asked.is_some_and(|at| at.elapsed() < FRESH)
}
