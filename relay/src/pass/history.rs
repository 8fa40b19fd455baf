//! Notes each minute of this relay in table `history`, for the charts of the console. The leader
//! adds how the database stands.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{
    error::{RelayError, StoreError, error_chain},
    postgres::{Store, leader::Leader},
    telemetry::metrics::Metrics,
};

/// The first row comes soon: it tells of a relay that has started, and of its version.
const FIRST: Duration = Duration::from_secs(5);
const EVERY: Duration = Duration::from_secs(60);
const NOTE_MAX: Duration = Duration::from_secs(10);

/// The rows of one relay.
#[derive(Debug)]
pub struct Historian {
    store: Arc<Store>,
    metrics: Metrics,
    leader: watch::Receiver<Leader>,
    /// Messages that were stored before the last row: by now they may have been handled.
    sample: Vec<(String, SystemTime)>,
}

impl Historian {
    pub(crate) fn new(store: Arc<Store>, metrics: Metrics, leader: watch::Receiver<Leader>) -> Self {
        Self { store, metrics, leader, sample: Vec::new() }
    }

    /// Writes rows until shutdown. Nothing depends on them, so a row that fails is only told of in
    /// the debug log, and the next one has its counts.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut pause = FIRST;
        loop {
            tokio::select! {
                () = sleep(pause) => {}
                () = shutdown.cancelled() => return,
            }
            pause = EVERY;
            let store = Arc::clone(&self.store);
            let permit = store.permit().await;
            let noted = timeout(NOTE_MAX, self.note()).await;
            drop(permit);
            match noted {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    debug!(error = %error_chain(&error), "write down what happened in this minute")
                }
                Err(_) => debug!("to write down what happened in this minute took too long"),
            }
        }
    }

    /// Writes one row, if there is something to say.
    ///
    /// # Errors
    /// PostgreSQL refused or went away; the next row has the counts.
    pub async fn note(&mut self) -> Result<(), RelayError> {
        self.write().await.map_err(RelayError::store)
    }

    async fn write(&mut self) -> Result<(), StoreError> {
        let leads = matches!(*self.leader.borrow(), Leader::This);
        let stands = match leads {
            true => Some((self.store.lag().await?, self.store.handled(&self.sample).await?)),
            false => None,
        };
        let minute = &self.metrics.minute;
        let counts = minute.take();
        if stands.is_none() && counts.stored == 0 {
            return Ok(());
        }
        let noted =
            self.store.note_history(&counts, stands.as_ref().map(|(standing, handled)| (standing, handled)));
        // Dropped in the middle, this loses the counts of one row.
        if let Err(error) = noted.await {
            minute.give_back(counts);
            return Err(error);
        }
        self.sample = counts.sample;
        Ok(())
    }
}

/// The last row of a relay that has drained.
pub(crate) async fn note_last(store: &Arc<Store>, metrics: &Metrics) -> Result<(), StoreError> {
    let counts = metrics.minute.take();
    match counts.stored {
        0 => Ok(()),
        _ => store.note_history(&counts, None).await,
    }
}
