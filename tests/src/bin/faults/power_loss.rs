//! Servers that have lost what they acknowledged.

use anyhow::{Context, Result, bail};
use tokio::time::sleep;

use crate::{
    broker::Broker,
    scenarios::{ABSENCE, CALM, await_replicas},
    stage::{STREAM, Stage, stream_config},
};

/// Not a message of the outbox.
const FOREIGN: &str = "foreign";

/// The server dies, and comes back with an older copy of its store: what it had acknowledged since
/// is gone. The second time somebody else gets the lost sequences before the relays are back.
pub(crate) async fn run(stage: &mut Stage<'_>) -> Result<String> {
    const LOSSES: u32 = 2;
    let mut config = stream_config(0);
    config.subjects.push(FOREIGN.to_owned());
    stage.broker.jetstream().await?.update_stream(config).await?;
    let mut lost = 0;
    for loss in 0..LOSSES {
        stage.broker.one().back_up().await?;
        stage.delivering().await?;
        stage.mid_batch().await?;
        sleep(CALM).await;
        let before = last_sequence(stage).await?;
        stage.broker.one().roll_back().await?;
        stage.producing.rush(false);
        sleep(ABSENCE).await;
        let is_refilled = loss == 1;
        if is_refilled {
            stage.relays.iter_mut().try_for_each(|relay| relay.suspend(true))?;
        }
        stage.broker.one().resume().await?;
        let missing = before.saturating_sub(last_sequence(stage).await?);
        if is_refilled {
            refill(stage, missing).await?;
            stage.relays.iter_mut().try_for_each(|relay| relay.suspend(false))?;
        }
        lost += missing;
        stage.delivering().await?;
        sleep(CALM).await;
    }
    Ok(format!(
        "{LOSSES} times an older copy of the store, {lost} messages and more gone; once their sequences given out again"
    ))
}

/// One node comes back with an older copy of its store, and catches up with the others.
pub(crate) async fn restore_one(stage: &mut Stage<'_>) -> Result<()> {
    let Broker::Three(cluster) = &mut stage.broker else { bail!("this scenario takes a cluster") };
    cluster.nodes_mut()[0].back_up().await?;
    await_replicas(cluster).await?;
    stage.mid_batch().await?;
    stage.delivering().await?;
    let Broker::Three(cluster) = &mut stage.broker else { bail!("this scenario takes a cluster") };
    cluster.nodes_mut()[0].roll_back().await?;
    stage.producing.rush(false);
    stage.delivering().await?;
    let Broker::Three(cluster) = &mut stage.broker else { bail!("this scenario takes a cluster") };
    cluster.nodes_mut()[0].resume().await?;
    await_replicas(cluster).await?;
    stage.say.say("a node was restored from an older copy, and has caught up");
    stage.delivering().await
}

/// Somebody else publishes so many messages.
async fn refill(stage: &Stage<'_>, messages: u64) -> Result<()> {
    let jetstream = stage.broker.jetstream().await?;
    let mut acknowledgements = Vec::new();
    for _ in 0..messages {
        acknowledgements.push(jetstream.publish(FOREIGN, "".into()).await?);
    }
    for acknowledgement in acknowledgements {
        acknowledgement.await.context("publish somebody else's message")?;
    }
    Ok(())
}

async fn last_sequence(stage: &Stage<'_>) -> Result<u64> {
    let stream = stage.broker.jetstream().await?.get_stream(STREAM).await.context("look at the stream")?;
    Ok(stream.cached_info().state.last_sequence)
}
