//! Waiting for a fact, with a limit.

use std::{ops::RangeInclusive, time::Duration};

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep};

/// Between two probes: a twentieth of the time that has passed, within these. Many tests wait side
/// by side for seconds, and each probe takes PostgreSQL's time from the others.
const PAUSES: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_millis(100);

async fn pause(start: Instant) {
    sleep((start.elapsed() / 20).clamp(*PAUSES.start(), *PAUSES.end())).await;
}

/// Asks again and again until `probe` has an answer; panics with `what` when there is none within
/// `limit`.
///
/// The limit bounds the wait, not the machine's speed: make it generous, a passing test never waits
/// for it.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use oncebox_tests::eventually;
///
/// let mut asked = 0;
/// let answer = eventually("three", std::time::Duration::from_secs(5), async || {
///     asked += 1;
///     (asked == 3).then_some(asked)
/// })
/// .await;
/// assert_eq!(answer, 3);
/// # });
/// ```
///
/// # Panics
/// No answer within the limit, also when one probe alone takes longer.
#[track_caller]
pub fn eventually<T, F: AsyncFnMut() -> Option<T>>(
    what: &str,
    limit: Duration,
    mut probe: F,
) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        let start = Instant::now();
        let polling = async {
            loop {
                if let Some(answer) = probe().await {
                    return answer;
                }
                pause(start).await;
            }
        };
        match tokio::time::timeout(limit, polling).await {
            Ok(answer) => answer,
            Err(_) => panic!("{caller}: not within {:.1?}: {what}", start.elapsed()),
        }
    }
}

/// Like [`eventually`], for programs, which go on to say more: an error instead of a panic. An
/// error of the probe ends the wait.
///
/// # Errors
/// No answer within the limit, or the probe's error.
pub async fn within<T>(
    what: &str,
    limit: Duration,
    mut probe: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = Instant::now();
    let polling = async {
        loop {
            if let Some(answer) = probe().await? {
                return Ok(answer);
            }
            pause(start).await;
        }
    };
    tokio::time::timeout(limit, polling).await.with_context(|| format!("not within {limit:?}: {what}"))?
}
