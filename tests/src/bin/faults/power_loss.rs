//! Servers that have lost what they acknowledged.

use anyhow::{Context, Result, bail};
use tokio::time::sleep;

use crate::{
    broker::Broker,
    scenarios::{ABSENCE, CALM, await_replicas},
    stage::{STREAM, Stage},
};

/// The server dies, and comes back with an older copy of its store: what it had acknowledged since
/// is gone.
pub(crate) async fn run(stage: &mut Stage<'_>) -> Result<String> {
    const LOSSES: u32 = 2;
    let mut lost = 0;
    for _ in 0..LOSSES {
        stage.broker.one().back_up().await?;
        stage.delivering().await?;
        stage.mid_batch().await?;
        sleep(CALM).await;
        let before = last_sequence(stage).await?;
        stage.broker.one().roll_back().await?;
        stage.producing.rush(false);
        sleep(ABSENCE).await;
        stage.broker.one().resume().await?;
        lost += before.saturating_sub(last_sequence(stage).await?);
        stage.delivering().await?;
        sleep(CALM).await;
    }
    Ok(format!("{LOSSES} times an older copy of the store, {lost} messages and more gone"))
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

async fn last_sequence(stage: &Stage<'_>) -> Result<u64> {
    let stream = stage.broker.jetstream().await?.get_stream(STREAM).await.context("look at the stream")?;
    Ok(stream.cached_info().state.last_sequence)
}
