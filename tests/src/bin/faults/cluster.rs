//! A cluster of three nodes, which die one after another.

use std::time::Duration;

use anyhow::{Result, bail};
use async_nats::jetstream::stream::ClusterInfo;
use oncebox_tests::{NatsCluster, within};

use crate::{
    broker::Broker,
    consumer::DURABLE,
    stage::{STREAM, Stage},
};

const WAIT_MAX: Duration = Duration::from_secs(60);

pub(crate) async fn run(stage: &mut Stage<'_>) -> Result<String> {
    let Broker::Three(_) = &stage.broker else { bail!("this scenario takes a cluster") };
    for node in 0..3 {
        stage.mid_batch().await?;
        let Broker::Three(cluster) = &mut stage.broker else { bail!("this scenario takes a cluster") };
        cluster.nodes_mut()[node].kill().await;
        stage.producing.rush(false);
        stage.delivering().await?;
        stage.say.say(format_args!("node {} is gone, and messages arrive", node + 1));
        let Broker::Three(cluster) = &mut stage.broker else { bail!("this scenario takes a cluster") };
        cluster.nodes_mut()[node].resume().await?;
        // The next one only when all three have everything: two at a time are more than three
        // replicas survive.
        await_replicas(cluster).await?;
    }
    restore_one(stage).await?;
    Ok("each of 3 nodes SIGKILL, one restored from an older copy; 3 replicas".to_owned())
}

/// One node comes back with an older copy of its store, and catches up with the others.
async fn restore_one(stage: &mut Stage<'_>) -> Result<()> {
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

async fn await_replicas(cluster: &NatsCluster) -> Result<()> {
    let jetstream = cluster.jetstream().await?;
    within("the replicas are current", WAIT_MAX, async || {
        // The consumer has replicas of its own, which may lag when the stream's are current.
        Ok(match jetstream.get_stream(STREAM).await {
            Ok(stream) if is_whole(stream.cached_info().cluster.as_ref()) => {
                let durable = stream.consumer_info(DURABLE).await.ok();
                durable.filter(|durable| is_whole(durable.cluster.as_ref())).map(drop)
            }
            _ => None,
        })
    })
    .await
}

/// Whether all three replicas have everything.
fn is_whole(cluster: Option<&ClusterInfo>) -> bool {
    cluster.is_some_and(|info| {
        info.leader.is_some()
            && info.replicas.len() == 2
            && info.replicas.iter().all(|replica| replica.current && !replica.offline)
    })
}
