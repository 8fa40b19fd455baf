//! Relays at a leaf node, whose hub has the stream, and now and then is out of reach.

use anyhow::{Result, bail, ensure};
use oncebox_tests::Leaf;
use tokio::time::sleep;

use crate::{broker::Broker, power_loss, scenarios::CALM, stage::Stage};

/// The way to the hub is cut, while a relay dies; then the hub loses acknowledged messages, which
/// the leaf node's stream of that name does not have.
pub(crate) async fn run(stage: &mut Stage<'_>) -> Result<String> {
    const CUTS: usize = 3;
    for cut in 0..CUTS {
        stage.mid_batch().await?;
        stage.producing.rush(false);
        servers(stage)?.open_way(false).await?;
        let relay = &mut stage.relays[cut % 2];
        relay.kill().await?;
        relay.restart().await?;
        sleep(CALM).await;
        servers(stage)?.open_way(true).await?;
        stage.delivering().await?;
    }
    let losses = "SELECT count(*) FROM oncebox.loss";
    let losses: i64 = stage.pool.get().await?.query_one(losses, &[]).await?.get(0);
    ensure!(losses == 0, "{losses} losses were found where there are none");
    let lost = power_loss::lose(stage, false).await?;
    ensure!(lost > 0, "the hub has lost nothing");
    Ok(format!(
        "the way to the hub cut {CUTS} times, each time SIGKILL of a relay; an older copy of its store, {lost} messages gone"
    ))
}

fn servers<'a>(stage: &'a Stage<'_>) -> Result<&'a Leaf> {
    let Broker::Leaf(leaf) = &stage.broker else { bail!("this scenario takes a leaf node") };
    Ok(leaf)
}
