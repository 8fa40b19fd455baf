//! One nats-server, a cluster of three, or a leaf node with its hub.

use anyhow::{Context, Result};
use async_nats::jetstream::{
    self,
    stream::{Config, Stream},
};
use oncebox_tests::{Leaf, Nats, NatsCluster};

#[derive(Debug)]
pub(crate) enum Broker {
    One(Box<Nats>),
    Three(NatsCluster),
    /// Relays are at the leaf node, the stream and its consumer at the hub.
    Leaf(Box<Leaf>),
}

impl Broker {
    /// For relays.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::One(nats) => nats.url(),
            Self::Three(cluster) => cluster.url(),
            Self::Leaf(leaf) => leaf.url(),
        }
    }

    /// By a client that reconnects for ever.
    pub(crate) async fn jetstream(&self) -> Result<jetstream::Context> {
        match self {
            Self::Three(cluster) => cluster.jetstream().await,
            _ => {
                let client = async_nats::connect(self.nodes()[0].url()).await;
                Ok(jetstream::new(client.context("connect to NATS")?))
            }
        }
    }

    pub(crate) async fn create_stream(&self, config: Config) -> Result<Stream> {
        match self {
            Self::One(_) => self.jetstream().await?.create_stream(config).await.context("create the stream"),
            Self::Three(cluster) => cluster.create_stream(Config { num_replicas: 3, ..config }).await,
            // One of the same name, which must not be taken for it.
            Self::Leaf(leaf) => {
                let subjects = vec!["elsewhere.>".to_owned()];
                let [at_hub, _] = leaf.create_streams(config.clone(), Config { subjects, ..config }).await?;
                Ok(at_hub)
            }
        }
    }

    pub(crate) fn nodes(&self) -> &[Nats] {
        match self {
            Self::One(nats) => std::slice::from_ref(nats),
            Self::Three(cluster) => cluster.nodes(),
            Self::Leaf(leaf) => leaf.nodes(),
        }
    }

    /// The one, or the first: the hub.
    pub(crate) fn one(&mut self) -> &mut Nats {
        match self {
            Self::One(nats) => nats,
            Self::Three(cluster) => &mut cluster.nodes_mut()[0],
            Self::Leaf(leaf) => &mut leaf.nodes_mut()[0],
        }
    }
}
