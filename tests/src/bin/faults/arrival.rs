//! Waits until everything has arrived.

use std::time::Duration;

use anyhow::Result;
use deadpool_postgres::Pool;
use oncebox_tests::{Patience, Program};
use tokio::time::{Instant, sleep};

use crate::consumer;

/// When everything runs again: if nothing arrives for this time, the missing messages count as
/// lost.
const CATCH_UP_MAX: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(100);
/// To count ten million effects takes seconds, so the pause is as many times as long.
const COUNT_PAUSES: u32 = 5;

/// Waits until all that was committed has had its effect, for as long as more has; returns both
/// numbers.
pub(crate) async fn catch_up(pool: &Pool, relays: &mut [Program]) -> Result<(i64, i64)> {
    let (mut patience, mut known) = (Patience::new(CATCH_UP_MAX), 0);
    let mut committed = None;
    loop {
        relays.iter_mut().try_for_each(Program::check)?;
        let started = Instant::now();
        let progress = progress(pool, &mut committed).await;
        known = progress.as_ref().map_or(known, |(_, arrived)| arrived.unsigned_abs());
        let is_over = patience.is_over(known);
        match progress {
            Ok((committed, arrived)) if committed <= arrived || is_over => return Ok((committed, arrived)),
            Err(error) if is_over => return Err(error),
            _ => sleep(PAUSE.max(COUNT_PAUSES * started.elapsed())).await,
        }
    }
}

/// No more are committed, so these are counted once.
async fn progress(pool: &Pool, committed: &mut Option<i64>) -> Result<(i64, i64)> {
    let known = match *committed {
        Some(known) => known,
        None => consumer::committed(pool).await?,
    };
    *committed = Some(known);
    Ok((known, consumer::arrived(pool).await?))
}
