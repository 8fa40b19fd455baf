//! Waiting for a consumer that gets on, however slowly.

use std::time::Duration;

use async_nats::jetstream::stream::Stream;
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

use super::{super::shop::LIMIT, Running};

/// How far a consumer is.
#[derive(PartialEq)]
pub(super) enum Standing {
    Done,
    /// Delivered up to a sequence, acknowledged up to one, in flight, and runs of handlers: a
    /// message may run again and again while nothing else is left.
    At(u64, u64, usize, i64),
}

/// How far the consumer is that has got `sent` messages, of which `count` are to stay in flight.
pub(super) async fn of(stream: &Stream, client: &Client, sent: usize, count: usize) -> Option<Standing> {
    let runs = client.query_one("SELECT count(*) FROM run", &[]).await.ok()?.get(0);
    let info = stream.consumer_info("conform").await.ok()?;
    let (delivered, done) = (info.delivered.stream_sequence, info.ack_floor.stream_sequence);
    match delivered == sent as u64 && info.num_ack_pending == count {
        true => Some(Standing::Done),
        false => Some(Standing::At(delivered, done, info.num_ack_pending, runs)),
    }
}

/// Waits until that is done, while the consumer gets on: a slow machine is no fault. If it
/// never is, the messages that are wrong say more than a panic.
pub(super) async fn settle(
    consumer: &mut Running,
    when: &str,
    mut standing: impl AsyncFnMut() -> Option<Standing>,
) -> Option<String> {
    let (mut last, begun) = (None, Instant::now());
    let mut since = begun;
    loop {
        if let Err(error) = consumer.check() {
            return Some(format!("{when}: {error}"));
        }
        let now = standing().await;
        if now == Some(Standing::Done) {
            return None;
        }
        if now != last {
            (last, since) = (now, Instant::now());
        }
        if since.elapsed() > LIMIT || begun.elapsed() > LIMIT * 4 {
            return Some(format!("not all have ended in time, {when}"));
        }
        sleep(POLL).await;
    }
}

/// How often a consumer is asked how far it is.
const POLL: Duration = Duration::from_millis(50);
