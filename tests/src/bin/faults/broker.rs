//! One nats-server, or a cluster of three.

use anyhow::{Context, Result};
use async_nats::jetstream::{
    self,
    stream::{Config, Stream},
};
use oncebox_tests::{Nats, NatsCluster};

#[derive(Debug)]
pub(crate) enum Broker {
    One(Box<Nats>),
    Three(NatsCluster),
}

impl Broker {
    pub(crate) fn url(&self) -> String {
        match self {
            Self::One(nats) => nats.url(),
            Self::Three(cluster) => cluster.url(),
        }
    }

    /// By a client that reconnects for ever.
    pub(crate) async fn jetstream(&self) -> Result<jetstream::Context> {
        match self {
            Self::One(nats) => {
                Ok(jetstream::new(async_nats::connect(nats.url()).await.context("connect to NATS")?))
            }
            Self::Three(cluster) => cluster.jetstream().await,
        }
    }

    pub(crate) async fn create_stream(&self, config: Config) -> Result<Stream> {
        match self {
            Self::One(_) => self.jetstream().await?.create_stream(config).await.context("create the stream"),
            Self::Three(cluster) => cluster.create_stream(Config { num_replicas: 3, ..config }).await,
        }
    }

    pub(crate) fn nodes(&self) -> &[Nats] {
        match self {
            Self::One(nats) => std::slice::from_ref(nats),
            Self::Three(cluster) => cluster.nodes(),
        }
    }

    pub(crate) fn one(&mut self) -> &mut Nats {
        match self {
            Self::One(nats) => nats,
            Self::Three(cluster) => &mut cluster.nodes_mut()[0],
        }
    }
}
