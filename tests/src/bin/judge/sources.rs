//! Reads the three places: ledger, stream, effects.

use std::{iter, time::Duration};

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
    /// Gives each committed message.
    pub(crate) async fn committed(&self, mut take: impl FnMut(Committed)) -> Result<()> {
        each_row(&self.producers, &self.ledger, |row| {
            take(Committed { key: row.try_get(0)?, ordering_key: row.try_get(1)?, place: row.try_get(2)? });
            Ok(())
        })
        .await
    }
}

/// Gives each key of a query, in its order.
pub(crate) async fn each_key(url: &str, query: &str, mut take: impl FnMut(&str)) -> Result<()> {
    each_row(url, query, |row| {
        take(row.try_get(0).context("a key is text")?);
        Ok(())
    })
    .await
}

/// One after another, so that ten million take no memory.
async fn each_row(url: &str, query: &str, mut take: impl FnMut(&Row) -> Result<()>) -> Result<()> {
    let (client, connection) = timeout(SILENCE_MAX, tokio_postgres::connect(url, NoTls)).await??;
    let reading = async {
        let mut rows = std::pin::pin!(client.query_raw(query, iter::empty::<&str>()).await?);
        while let Some(row) = rows.next().await {
            take(&row?)?;
        }
        Ok(())
    };
    tokio::select! {
        read = reading => read,
        ended = connection => bail!("the connection has ended: {ended:?}"),
    }
}

impl StreamSource {
    /// Gives the key of each message, in the order of the stream.
    pub(crate) async fn each_key(&self, mut take: impl FnMut(&str)) -> Result<()> {
        let jetstream = jetstream::new(async_nats::connect(&self.url).await?);
        let stream = jetstream.get_stream(&self.name).await?;
        let filter_subject = self.subject.clone();
        let config = OrderedConfig { filter_subject, headers_only: true, ..OrderedConfig::default() };
        let consumer = stream.create_consumer(config).await?;
        let total = consumer.cached_info().num_pending;
        let mut messages = consumer.messages().await?;
        for number in 0..total {
            let Some(message) =
                timeout(SILENCE_MAX, messages.next()).await.context("the stream is silent")?
            else {
                bail!("the stream ended after {number} of {total} messages")
            };
            let message = message?;
            let key = message.headers.as_ref().and_then(|headers| headers.get(self.header.as_str()));
            take(key.with_context(|| format!("a message has no {}", self.header))?.as_str());
        }
        Ok(())
    }
}
