//! Servers that have lost acknowledged messages.

use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use oncebox_tests::within;
use tokio::time::sleep;

use crate::{
    scenarios::{ABSENCE, CALM},
    stage::{STREAM, Stage, stream_config},
};

const WAIT_MAX: Duration = Duration::from_secs(60);
const IN_FLIGHT: usize = 1_000;
/// Not a message of the outbox.
const FOREIGN: &str = "foreign";

/// The server dies, and comes back with an older copy of its store: messages acknowledged since are
/// gone. The second time another program gets the lost sequences before the relays are back.
pub(crate) async fn run(stage: &mut Stage<'_>) -> Result<String> {
    const LOSSES: u32 = 2;
    let mut config = stream_config(0);
    config.subjects.push(FOREIGN.to_owned());
    stage.broker.jetstream().await?.update_stream(config).await?;
    let mut lost = 0;
    for loss in 0..LOSSES {
        lost += lose(stage, loss == 1).await?;
    }
    Ok(format!(
        "{LOSSES} times an older copy of the store, {lost} messages and more gone; once their sequences given out again"
    ))
}

/// One loss; returns how many messages are gone.
pub(crate) async fn lose(stage: &mut Stage<'_>, is_refilled: bool) -> Result<u64> {
    stage.broker.one().back_up().await?;
    let kept = last_sequence(stage).await?;
    // Relays at a leaf node are back later than the consumer.
    within(
        "the stream takes more",
        WAIT_MAX,
        async || Ok((last_sequence(stage).await? > kept).then_some(())),
    )
    .await?;
    stage.mid_batch().await?;
    sleep(CALM).await;
    let before = last_sequence(stage).await?;
    stage.broker.one().roll_back().await?;
    stage.producing.rush(false);
    sleep(ABSENCE).await;
    if is_refilled {
        stage.relays.iter_mut().try_for_each(|relay| relay.suspend(true))?;
    }
    stage.broker.one().resume().await?;
    let missing = before.saturating_sub(last_sequence(stage).await?);
    if is_refilled {
        refill(stage, missing).await?;
        stage.relays.iter_mut().try_for_each(|relay| relay.suspend(false))?;
    }
    stage.delivering().await?;
    sleep(CALM).await;
    Ok(missing)
}

/// Another program publishes `messages` messages.
async fn refill(stage: &Stage<'_>, messages: u64) -> Result<()> {
    let jetstream = stage.broker.jetstream().await?;
    let publish = async || {
        let acknowledgement = jetstream.publish(FOREIGN, "".into()).await?;
        acknowledgement.await.context("publish somebody else's message")
    };
    // Of more than 5,000 without an acknowledgement the client takes none.
    let mut publishing = stream::iter(0..messages).map(|_| publish()).buffered(IN_FLIGHT);
    while publishing.try_next().await?.is_some() {}
    Ok(())
}

async fn last_sequence(stage: &Stage<'_>) -> Result<u64> {
    let stream = stage.broker.jetstream().await?.get_stream(STREAM).await.context("look at the stream")?;
    Ok(stream.cached_info().state.last_sequence)
}
