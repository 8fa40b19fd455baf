//! The pace of a command that acts on many messages, and its progress.

use std::{fmt, time::Duration};

use tokio::time::{Instant, sleep_until};

use super::BATCH;

/// A command with a rate acts so often a second.
const BATCHES_A_SECOND: f64 = 4.0;

/// Is told how many messages are done.
pub type Progress = Box<dyn FnMut(u64) + Send + Sync>;

/// The rate of a command, and the number of its changes.
#[derive(Default)]
pub(crate) struct Pace {
    rate: Option<f64>,
    began: Option<Instant>,
    done: u64,
    progress: Option<Progress>,
}

impl fmt::Debug for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pace").field("rate", &self.rate).field("done", &self.done).finish_non_exhaustive()
    }
}

impl Pace {
    pub(crate) fn new(rate: Option<f64>, progress: Option<Progress>) -> Self {
        Self { rate, progress, ..Self::default() }
    }

    /// How many messages are changed at once, at most.
    pub(crate) fn batch(&self) -> usize {
        let most = usize::try_from(BATCH).unwrap_or(usize::MAX);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a batch is small")]
        let share = |rate: f64| ((rate / BATCHES_A_SECOND) as usize).max(1);
        self.rate.map_or(most, |rate| share(rate).min(most))
    }

    /// Notes `count` more changes, and waits until the rate allows the next.
    pub(crate) async fn did(&mut self, count: u64) {
        let began = *self.began.get_or_insert_with(Instant::now);
        self.done += count;
        if let Some(progress) = &mut self.progress {
            progress(self.done);
        }
        if let Some(rate) = self.rate {
            #[expect(clippy::cast_precision_loss, reason = "a pause")]
            let seconds = self.done as f64 / rate;
            sleep_until(began + Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX / 4)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_rate_is_kept_in_small_batches() {
        let mut pace = Pace::new(Some(10.0), None);
        assert_eq!(pace.batch(), 2);
        let began = Instant::now();
        for _ in 0..20 {
            pace.did(2).await;
        }
        assert_eq!(began.elapsed().as_secs(), 4);
        assert_eq!(Pace::new(Some(0.1), None).batch(), 1);
        assert_eq!(Pace::default().batch(), 1_000);
    }
}
