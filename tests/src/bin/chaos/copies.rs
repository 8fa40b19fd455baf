//! Three copies of every message that the relays deliver, in an order of their own.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use async_nats::{
    HeaderMap,
    header::NATS_MESSAGE_ID,
    jetstream::{self, consumer::pull::OrderedConfig},
};
use bytes::Bytes;
use fastrand::Rng;
use futures_util::{StreamExt, future::try_join_all};
use tokio::{
    task::JoinSet,
    time::{Instant, interval, timeout},
};

use crate::order::{COPIED, STREAM, WRITTEN};

pub(crate) const COPIES: usize = 3;
/// The most milliseconds between an original and its copy.
const DELAY_MAX: u64 = 5_000;
const TICK: Duration = Duration::from_millis(20);
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Who makes the copies, until it is stopped.
#[derive(Debug)]
pub(crate) struct Copier {
    shared: Arc<Shared>,
    task: JoinSet<Result<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    keys: Mutex<HashSet<String>>,
    /// Copies to be published.
    waiting: AtomicUsize,
    published: AtomicUsize,
    is_last: AtomicBool,
}

struct Copy {
    due: Instant,
    subject: String,
    headers: HeaderMap,
    payload: Bytes,
}

impl Copier {
    pub(crate) fn start(jetstream: jetstream::Context, rng: Rng) -> Self {
        let shared = Arc::<Shared>::default();
        let mut task = JoinSet::new();
        task.spawn(run(jetstream, rng, Arc::clone(&shared)));
        Self { shared, task }
    }

    /// How many keys have come.
    pub(crate) fn keys(&self) -> usize {
        self.shared.keys().len()
    }

    /// How many copies were published.
    pub(crate) fn published(&self) -> usize {
        self.shared.published.load(SeqCst)
    }

    /// Whether every copy of the messages so far is published.
    pub(crate) fn is_done(&self) -> bool {
        self.shared.waiting.load(SeqCst) == 0
    }

    /// Ends when nothing waits. Call it when nothing more comes.
    pub(crate) async fn stop(mut self) -> Result<usize> {
        self.shared.is_last.store(true, SeqCst);
        while let Some(ended) = self.task.join_next().await {
            ended?.context("publish copies")?;
        }
        Ok(self.published())
    }
}

impl Shared {
    fn keys(&self) -> MutexGuard<'_, HashSet<String>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn run(jetstream: jetstream::Context, mut rng: Rng, shared: Arc<Shared>) -> Result<()> {
    let stream = jetstream.get_stream(STREAM).await?;
    let config = OrderedConfig { filter_subject: format!("{WRITTEN}>"), ..OrderedConfig::default() };
    let mut messages = stream.create_consumer(config).await?.messages().await?;
    let (mut waiting, mut ticks) = (Vec::new(), interval(TICK));
    loop {
        tokio::select! {
            message = messages.next() => {
                let message = message.context("the stream ends")??;
                let headers = message.headers.clone().context("a message without headers is in the stream")?;
                let key = headers.get("Idempotency-Key").context("a message without a key is in the stream")?;
                shared.keys().insert(key.to_string());
                let kind = message.subject.strip_prefix(WRITTEN).context("another subject")?;
                for number in 0..COPIES {
                    waiting.push(Copy {
                        due: Instant::now() + Duration::from_millis(rng.u64(..DELAY_MAX)),
                        subject: format!("{COPIED}{kind}"),
                        headers: disguised(&headers, number, &mut rng),
                        payload: message.payload.clone(),
                    });
                }
                shared.waiting.store(waiting.len(), SeqCst);
            }
            _ = ticks.tick() => {
                let due = take_due(&mut waiting);
                let count = due.len();
                timeout(ANSWER_MAX, publish(&jetstream, due)).await.context("NATS does not answer")??;
                shared.published.fetch_add(count, SeqCst);
                shared.waiting.store(waiting.len(), SeqCst);
                if shared.is_last.load(SeqCst) && waiting.is_empty() {
                    return Ok(());
                }
            }
        }
    }
}

/// A copy with the same key, and with no message id or a new one, so that JetStream does not drop
/// it.
fn disguised(headers: &HeaderMap, number: usize, rng: &mut Rng) -> HeaderMap {
    let mut copy = HeaderMap::new();
    for (name, values) in headers.iter().filter(|(name, _)| **name != NATS_MESSAGE_ID) {
        for value in values {
            copy.append(name.clone(), value.clone());
        }
    }
    if rng.bool() {
        copy.insert(NATS_MESSAGE_ID, format!("copy-{number}-{}", rng.u64(..)));
    }
    copy
}

fn take_due(waiting: &mut Vec<Copy>) -> Vec<Copy> {
    let now = Instant::now();
    waiting.extract_if(.., |copy| copy.due <= now).collect()
}

async fn publish(jetstream: &jetstream::Context, mut copies: Vec<Copy>) -> Result<()> {
    copies.sort_by_key(|copy| copy.due);
    let mut answers = Vec::with_capacity(copies.len());
    for Copy { subject, headers, payload, .. } in copies {
        answers.push(jetstream.publish_with_headers(subject, headers, payload).await?.into_future());
    }
    try_join_all(answers).await?;
    Ok(())
}
