//! A server that has lost what it acknowledged.

use anyhow::{Context, Result};
use tokio::time::sleep;

use crate::{
    scenarios::{ABSENCE, CALM},
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

async fn last_sequence(stage: &Stage<'_>) -> Result<u64> {
    let stream = stage.broker.jetstream().await?.get_stream(STREAM).await.context("look at the stream")?;
    Ok(stream.cached_info().state.last_sequence)
}
