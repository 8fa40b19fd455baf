//! Notes each minute of this relay in table `history`, for the charts of the console. The leader
//! adds how the database stands.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::{
    delivery::minute::Counts,
    error::{RelayError, StoreError, error_chain},
    postgres::{Leader, Store},
    telemetry::Metrics,
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
    /// The counts of the row that is being written.
    unwritten: Option<Counts>,
}

impl Historian {
    pub(crate) fn new(store: Arc<Store>, metrics: Metrics, leader: watch::Receiver<Leader>) -> Self {
        Self { store, metrics, leader, sample: Vec::new(), unwritten: None }
    }

    /// Writes rows until shutdown. Nothing depends on them, so a row that fails is only told of in
    /// the debug log, and the next one has its counts.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut pause = FIRST;
        while shutdown.run_until_cancelled(sleep(pause)).await.is_some() {
            pause = EVERY;
            let store = Arc::clone(&self.store);
            let noted = store.in_turn(NOTE_MAX, self.note()).await;
            self.give_back();
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
        let noted = self.write().await;
        self.give_back();
        noted.map_err(RelayError::store)
    }

    /// The counts of a row that was refused or cut off belong to the next one.
    fn give_back(&mut self) {
        if let Some(counts) = self.unwritten.take() {
            self.metrics.minute.give_back(counts);
        }
    }

    async fn write(&mut self) -> Result<(), StoreError> {
        let leads = matches!(*self.leader.borrow(), Leader::This);
        let stands = match leads {
            true => Some((self.store.lag().await?, self.store.handled(&self.sample).await?)),
            false => None,
        };
        let counts = self.unwritten.insert(self.metrics.minute.take());
        if stands.is_none() && counts.stored == 0 {
            self.unwritten = None;
            return Ok(());
        }
        let noted =
            self.store.note_history(counts, stands.as_ref().map(|(standing, handled)| (standing, handled)));
        noted.await?;
        self.sample = self.unwritten.take().map(|counts| counts.sample).unwrap_or_default();
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
