//! Runs two ways of doing the same thing, in turns, with a number of workers.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use tokio::{task::JoinSet, time::Instant};

/// One of the two ways that are compared.
pub(crate) trait Side: Send + Sync + 'static {
    /// Does it once. Worker numbers count from 0; a worker does one thing at a time.
    fn once(&self, worker: usize) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Does it again and again until the deadline, and returns how often.
    fn until(&self, worker: usize, deadline: Instant) -> impl Future<Output = anyhow::Result<u32>> + Send {
        async move {
            let mut completed = 0;
            while Instant::now() < deadline {
                self.once(worker).await?;
                completed += 1;
            }
            Ok(completed)
        }
    }
}

/// How many repetitions per second each side completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    pub(crate) reference: f64,
    pub(crate) measured: f64,
}

impl Rates {
    /// 1 when the measured side is as fast as the reference.
    pub(crate) fn ratio(self) -> f64 {
        self.measured / self.reference
    }
}

/// How many turns each side has in a round. The order is A B B A A B B A and so on, which cancels a
/// steady drift, so the number is even.
const TURNS: u32 = 10;

/// Runs both sides in short turns, `total` altogether, and returns the mean rate of each.
///
/// Turns are short, so that a slow moment of this machine (a checkpoint, another process) slows
/// both sides down.
pub(crate) async fn alternate(
    total: Duration,
    workers: usize,
    reference: &Arc<impl Side>,
    measured: &Arc<impl Side>,
) -> anyhow::Result<Rates> {
    let turn = total / (2 * TURNS);
    let mut sums = Rates { reference: 0.0, measured: 0.0 };
    for number in 0..TURNS {
        if number.is_multiple_of(2) {
            sums.reference += rate(turn, workers, reference).await.context("take the reference's turn")?;
            sums.measured += rate(turn, workers, measured).await?;
        } else {
            sums.measured += rate(turn, workers, measured).await?;
            sums.reference += rate(turn, workers, reference).await.context("take the reference's turn")?;
        }
    }
    let turns = f64::from(TURNS);
    Ok(Rates { reference: sums.reference / turns, measured: sums.measured / turns })
}

/// Completed repetitions per second of all workers together.
async fn rate(turn: Duration, workers: usize, side: &Arc<impl Side>) -> anyhow::Result<f64> {
    let start = Instant::now();
    let deadline = start + turn;
    let mut tasks = JoinSet::new();
    for worker in 0..workers {
        let side = Arc::clone(side);
        tasks.spawn(async move { side.until(worker, deadline).await });
    }
    let mut completed = 0.0;
    while let Some(worker) = tasks.join_next().await {
        completed += f64::from(worker.context("run a worker")??);
    }
    Ok(completed / start.elapsed().as_secs_f64())
}
