//! Notices that an outbox has had no work for a while, so that its relay may sleep: it then has no
//! connection to the database, which may be suspended meanwhile.
//!
//! | event | the relay |
//! |---|---|
//! | nothing was enqueued, sent or due for `sleep_after`, and nothing will be soon | it drains and sleeps |
//! | a message is due later, or a pause ends | it wakes a little earlier |
//! | a transaction that has enqueued is open | it stays awake |
//! | a message is committed before the last look, which follows the drain | it serves again at once |
//! | a message is committed after the last look | it waits for a hint, or for the end of the sleep |

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use super::ANSWER_MAX;
use crate::{
    error::StoreError,
    postgres::{Store, look::Standstill},
    telemetry::Metrics,
};

/// So much earlier than the next message is due a relay wakes: a suspended database takes a while.
const AHEAD: Duration = Duration::from_secs(5);
/// Looks in the time after which a relay sleeps.
const LOOKS: u32 = 10;
const LOOK_MIN: Duration = Duration::from_millis(200);
const LOOK_MAX: Duration = Duration::from_secs(15);

impl Standstill {
    /// How long a relay may sleep; `None` when it has to work within `sleep_after`.
    pub(crate) fn sleep(&self, sleep_after: Duration, at_most: Duration) -> Option<Duration> {
        if self.is_enqueuing {
            return None;
        }
        match self.next_due {
            Some(due) if due <= sleep_after + AHEAD => None,
            Some(due) => Some(at_most.min(due - AHEAD)),
            None => Some(at_most),
        }
    }
}

/// Resolves when there has been no work for `sleep_after`. A relay that is not ready stays awake:
/// its probes and its log say why.
pub(crate) async fn idle(store: &Arc<Store>, metrics: &Metrics, sleep_after: Duration) -> Standstill {
    let pause = (sleep_after / LOOKS).clamp(LOOK_MIN, LOOK_MAX);
    let (mut known, mut since) = (None, Instant::now());
    loop {
        sleep(pause).await;
        let looked = timeout(ANSWER_MAX, look(store, metrics, sleep_after)).await;
        let now = match looked {
            Ok(Ok(Some(now))) => Some((now, metrics.published.get())),
            Ok(Ok(None)) => None,
            failed => {
                debug!(?failed, "look whether the relay may sleep");
                None
            }
        };
        let is_same = matches!((&now, &known), (Some((now, sent)), Some((ids, before))) if now.ids == *ids && sent == before);
        known = now.as_ref().map(|(now, sent)| (now.ids, *sent));
        match now {
            Some((now, _)) if is_same && since.elapsed() >= sleep_after => return now,
            _ if !is_same => since = Instant::now(),
            _ => {}
        }
    }
}

/// Looks once; `None` while there is work.
async fn look(
    store: &Arc<Store>,
    metrics: &Metrics,
    sleep_after: Duration,
) -> Result<Option<Standstill>, StoreError> {
    if metrics.not_ready().is_some() {
        return Ok(None);
    }
    let _permit = store.permit().await;
    let now = store.look_for_work().await?;
    if now.sleep(sleep_after, Duration::MAX).is_none() {
        return Ok(None);
    }
    let standing = store.lag().await?;
    // A sleeping relay shows these.
    metrics.observe(&standing);
    Ok(standing.lanes.iter().all(|lane| lane.backlog_messages == 0).then_some(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_sleeps_until_shortly_before_the_next_message() {
        let seconds = Duration::from_secs;
        let (after, at_most) = (seconds(300), seconds(900));
        let mut look =
            Standstill { ids: (1, 1), is_enqueuing: false, next_due: None, database: String::new() };
        assert_eq!(look.sleep(after, at_most), Some(at_most));
        for (due, expected) in [(0, None), (305, None), (306, Some(301)), (905, Some(900)), (906, Some(900))]
        {
            look.next_due = Some(seconds(due));
            assert_eq!(look.sleep(after, at_most), expected.map(seconds), "{due}");
        }
        look.is_enqueuing = true;
        assert_eq!(look.sleep(after, at_most), None);
    }
}
