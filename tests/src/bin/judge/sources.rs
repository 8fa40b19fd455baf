//! Reads the three places: ledger, stream, effects.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use async_nats::jetstream::{self, consumer::pull::OrderedConfig};
use futures_util::StreamExt as _;
use tokio::time::timeout;
use tokio_postgres::{NoTls, Row};

/// How long a server may say nothing.
const SILENCE_MAX: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) producers: String,
    pub(crate) ledger: String,
    pub(crate) stream: StreamSource,
    /// Database and query.
    pub(crate) effects: Vec<(String, String)>,
}

#[derive(Debug, Default)]
pub(crate) struct StreamSource {
    pub(crate) url: String,
    pub(crate) name: String,
    pub(crate) subject: String,
    pub(crate) header: String,
}

/// A committed message.
#[derive(Clone, Debug)]
pub(crate) struct Committed {
    pub(crate) key: String,
    pub(crate) ordering_key: Option<String>,
    pub(crate) place: Option<i64>,
}

impl Sources {
    pub(crate) async fn committed(&self) -> Result<Vec<Committed>> {
        let rows = rows(&self.producers, &self.ledger).await?;
        rows.iter()
            .map(|row| {
                Ok(Committed { key: row.try_get(0)?, ordering_key: row.try_get(1)?, place: row.try_get(2)? })
            })
            .collect()
    }
}

/// The keys that a query gives, in its order.
pub(crate) async fn keys(url: &str, query: &str) -> Result<Vec<String>> {
    let rows = rows(url, query).await?;
    rows.iter().map(|row| row.try_get(0).context("a key is text")).collect()
}

async fn rows(url: &str, query: &str) -> Result<Vec<Row>> {
    let (client, connection) = timeout(SILENCE_MAX, tokio_postgres::connect(url, NoTls)).await??;
    tokio::select! {
        rows = client.query(query, &[]) => Ok(rows?),
        ended = connection => bail!("the connection has ended: {ended:?}"),
    }
}

impl StreamSource {
    /// The keys of all messages, in the order of the stream.
    pub(crate) async fn keys(&self) -> Result<Vec<String>> {
        let jetstream = jetstream::new(async_nats::connect(&self.url).await?);
        let stream = jetstream.get_stream(&self.name).await?;
        let config = OrderedConfig { filter_subject: self.subject.clone(), ..OrderedConfig::default() };
        let consumer = stream.create_consumer(config).await?;
        let total = usize::try_from(consumer.cached_info().num_pending)?;
        let (mut messages, mut keys) = (consumer.messages().await?, Vec::with_capacity(total));
        while keys.len() < total {
            let Some(message) =
                timeout(SILENCE_MAX, messages.next()).await.context("the stream is silent")?
            else {
                bail!("the stream ended after {} of {total} messages", keys.len())
            };
            let message = message?;
            let key = message.headers.as_ref().and_then(|headers| headers.get(self.header.as_str()));
            keys.push(key.with_context(|| format!("a message has no {}", self.header))?.to_string());
        }
        Ok(keys)
    }
}
