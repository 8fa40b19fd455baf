//! A cluster of three nats-servers of a test's own.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use async_nats::jetstream::{self, stream::Stream};
use tokio::time::{Instant, sleep};

use crate::{nats::Nats, postgres::free_port};

const NODES: usize = 3;
const ATTEMPTS: u32 = 3;
const REQUEST: Duration = Duration::from_secs(2);
const DEADLINE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(200);

/// Three nats-servers with JetStream that know each other, on free loopback ports; streams may have
/// three replicas.
///
/// Each node is a [`Nats`] that can be killed, suspended and resumed; all end as these do.
#[derive(Debug)]
pub struct NatsCluster {
    nodes: Vec<Nats>,
}

impl NatsCluster {
    /// Starts three servers. That they have a leader shows when a stream can be created.
    ///
    /// # Errors
    /// As for [`Nats::start`].
    pub async fn start() -> Result<Self> {
        for _ in 0..ATTEMPTS {
            let routes: Vec<u16> = (0..NODES).map(|_| free_port()).collect::<Result<_>>()?;
            let urls: Vec<String> =
                routes.iter().map(|port| format!("\"nats://127.0.0.1:{port}\"")).collect();
            // Another cluster may get the port of a node that was killed: it is refused by its
            // name.
            let name = format!("oncebox-{}-{}", std::process::id(), routes[0]);
            let mut nodes = Vec::new();
            for port in &routes {
                let config = format!(
                    "cluster {{ name: {name}, listen: \"127.0.0.1:{port}\", routes: [{}] }}",
                    urls.join(", ")
                );
                match Nats::start_with(&config).await {
                    Ok(node) => nodes.push(node),
                    // Another process took a port for the routes in between: all three start again.
                    Err(error) if error.to_string().contains("no free port") => break,
                    Err(error) => return Err(error),
                }
            }
            if nodes.len() == NODES {
                return Ok(Self { nodes });
            }
        }
        bail!("the cluster found no free ports in {ATTEMPTS} attempts")
    }

    /// The URLs of all nodes with commas between them, as the relay's `--nats-url` takes them.
    #[must_use]
    pub fn url(&self) -> String {
        self.urls().join(",")
    }

    /// The URL of each node.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Nats::url).collect()
    }

    /// The nodes, to be looked at.
    #[must_use]
    pub fn nodes(&self) -> &[Nats] {
        &self.nodes
    }

    /// The nodes, to be killed and the like.
    #[must_use]
    pub fn nodes_mut(&mut self) -> &mut [Nats] {
        &mut self.nodes
    }

    /// JetStream by a client that goes on with another node when its own is gone.
    ///
    /// # Errors
    /// No node answers.
    pub async fn jetstream(&self) -> Result<jetstream::Context> {
        let urls: Vec<async_nats::ServerAddr> =
            self.urls().iter().map(|url| url.parse()).collect::<Result<_, _>>()?;
        let client = async_nats::connect(urls).await.context("connect to the cluster")?;
        Ok(jetstream::ContextBuilder::new().timeout(REQUEST).build(client))
    }

    /// Creates a stream, as soon as the cluster has a leader and knows enough nodes.
    ///
    /// # Errors
    /// The stream did not exist within a minute.
    pub async fn create_stream(&self, config: jetstream::stream::Config) -> Result<Stream> {
        let jetstream = self.jetstream().await?;
        let deadline = Instant::now() + DEADLINE;
        loop {
            match jetstream.get_or_create_stream(config.clone()).await {
                Ok(stream) => return Ok(stream),
                Err(error) if Instant::now() > deadline => return Err(error).context("create a stream"),
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    /// The index of the node that leads a stream.
    ///
    /// # Errors
    /// None does within a minute.
    pub async fn leader(&self, stream: &str) -> Result<usize> {
        let jetstream = self.jetstream().await?;
        let deadline = Instant::now() + DEADLINE;
        while Instant::now() < deadline {
            if let Ok(stream) = jetstream.get_stream(stream).await {
                let leader = stream.cached_info().cluster.as_ref().and_then(|cluster| cluster.leader.clone());
                let found = self.nodes.iter().position(|node| leader.as_ref() == Some(&node.name()));
                if let Some(index) = found {
                    return Ok(index);
                }
            }
            sleep(PAUSE).await;
        }
        bail!("stream {stream} has no leader after {DEADLINE:?}")
    }
}
