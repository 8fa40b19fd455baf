//! The raw limit of a drain: an async-nats program that publishes the same messages from memory.
//!
//! A careful user of the client with nothing else to do would write it so: one connection, a window
//! of unacknowledged messages, acknowledgements awaited in the order of publishing (the server
//! acknowledges in that order, so the head of the queue is the one to wait for). It checks every
//! acknowledgement, as the relay must. The client consumes a message's headers, so they are put
//! together from the texts in memory for each publish, as in any program that keeps its messages
//! until they are acknowledged; no text is formatted then. The messages have the relay's headers,
//! so the stream stores the same bytes; the drain checks that it did.

use std::{collections::VecDeque, time::Duration};

use anyhow::{Context, ensure};
use async_nats::{
    HeaderMap,
    jetstream::context::{ContextBuilder, PublishAckFuture},
};

use crate::{backlog::Message, servers::Servers};

/// How many messages are published and not acknowledged yet, at most.
pub(crate) const WINDOW: usize = 4096;
const ACK_LIMIT: Duration = Duration::from_secs(30);

/// Publishes all messages and returns when the last one is acknowledged.
pub(crate) async fn publish_all(servers: &Servers, messages: &[Message]) -> anyhow::Result<()> {
    let jetstream =
        ContextBuilder::new().timeout(ACK_LIMIT).max_ack_inflight(WINDOW).build(servers.nats().await?);
    let mut window: VecDeque<PublishAckFuture> = VecDeque::with_capacity(WINDOW);
    for message in messages {
        if window.len() == WINDOW {
            settle(window.pop_front()).await?;
        }
        let publishing = jetstream
            .publish_with_headers(message.subject.clone(), headers(message), message.payload.clone())
            .await
            .context("publish")?;
        window.push_back(publishing);
    }
    while !window.is_empty() {
        settle(window.pop_front()).await?;
    }
    Ok(())
}

async fn settle(oldest: Option<PublishAckFuture>) -> anyhow::Result<()> {
    let Some(oldest) = oldest else { return Ok(()) };
    let ack = oldest.await.context("await the acknowledgement")?;
    ensure!(!ack.duplicate, "message {} was in the stream already", ack.sequence);
    Ok(())
}

fn headers(message: &Message) -> HeaderMap {
    let mut headers = HeaderMap::new();
    // As long as the relay's: outbox/digest/0/key.
    headers.insert("Nats-Msg-Id", format!("0123456789ab/0123456789abcdef/0/{}", message.key).as_str());
    headers.insert("Idempotency-Key", message.key.as_str());
    headers.insert("Oncebox-Id", message.id.as_str());
    headers.insert("Oncebox-Time", message.time.as_str());
    if let Some(ordering_key) = &message.ordering_key {
        headers.insert("Oncebox-Ordering-Key", ordering_key.as_str());
    }
    headers
}
