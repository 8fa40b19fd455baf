//! A hub and a leaf node, each with a domain of JetStream, and a proxy between them.

use std::time::Duration;

use anyhow::{Context, Result};
use async_nats::jetstream::{self, stream};

use crate::{Nats, Proxy, eventually::within, postgres::free_port};

const WAIT_MAX: Duration = Duration::from_secs(30);

/// Two servers: the one that keeps the streams, and the one that programs connect to.
#[derive(Debug)]
pub struct Leaf {
    nodes: [Nats; 2],
    way: Proxy,
}

impl Leaf {
    /// Starts both, and waits until the leaf node reaches the hub.
    ///
    /// # Errors
    /// No binary, or a server does not start.
    pub async fn start() -> Result<Self> {
        let port = free_port()?;
        // A leaf node that is told the hub's address goes there, and not through the proxy.
        let listen = format!("leafnodes {{ host: 127.0.0.1, port: {port}, no_advertise: true }}");
        let hub = Nats::start_with_jetstream("domain: hub", &listen).await?;
        let way = Proxy::start(([127, 0, 0, 1], port).into()).await;
        let remotes = format!("remotes: [{{ url: \"nats-leaf://127.0.0.1:{}\" }}]", way.port());
        let remote = format!("leafnodes {{ reconnect: 1, {remotes} }}");
        let leaf = Nats::start_with_jetstream("domain: leaf", &remote).await?;
        let this = Self { nodes: [hub, leaf], way };
        this.await_way(true).await?;
        Ok(this)
    }

    /// The hub and the leaf node.
    #[must_use]
    pub fn nodes(&self) -> &[Nats; 2] {
        &self.nodes
    }

    /// The hub and the leaf node.
    #[must_use]
    pub fn nodes_mut(&mut self) -> &mut [Nats; 2] {
        &mut self.nodes
    }

    /// The leaf node's URL.
    #[must_use]
    pub fn url(&self) -> String {
        self.nodes[1].url()
    }

    /// Creates a stream at the hub, and one of the same name at the leaf node.
    ///
    /// # Errors
    /// A server refuses.
    pub async fn create_streams(
        &self,
        hub: stream::Config,
        leaf: stream::Config,
    ) -> Result<[stream::Stream; 2]> {
        let create = async |nats: &Nats, config| {
            let context = jetstream::new(async_nats::connect(nats.url()).await?);
            context.create_stream(config).await.context("create a stream")
        };
        Ok([create(&self.nodes[0], hub).await?, create(&self.nodes[1], leaf).await?])
    }

    /// Opens the way to the hub, or cuts it, and waits until it is so.
    ///
    /// # Errors
    /// It is not so after 30 seconds.
    pub async fn open_way(&self, on: bool) -> Result<()> {
        self.way.refuse(!on);
        if !on {
            self.way.cut();
        }
        self.await_way(on).await
    }

    async fn await_way(&self, is_there: bool) -> Result<()> {
        let client = async_nats::connect(self.url()).await?;
        within("the way to the hub", WAIT_MAX, async || {
            let asked = client.request("$JS.hub.API.INFO", "".into()).await;
            Ok((asked.is_ok() == is_there).then_some(()))
        })
        .await
    }
}
