//! Pulling from one JetStream consumer, until something is lost.

use std::time::Duration;

use async_nats::jetstream::{
    self,
    consumer::{PullConsumer, pull::Batch},
};
use futures_util::StreamExt;
use tokio::time::{Instant, timeout, timeout_at};

const EXPIRES: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// From setting up a JetStream consumer to losing it.
#[derive(Debug)]
pub(super) struct Sitting {
    consumer: PullConsumer,
    pull: Option<Pull>,
    /// The consumer sequence of the last delivery, and the extra deliveries of the next message; with strict order.
    strict: Option<(u64, u64)>,
}

struct Pull {
    batch: Batch,
    deadline: Instant,
}

impl std::fmt::Debug for Pull {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pull").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// A delivery, and how often the message was delivered by earlier consumers of this name.
pub(super) type Delivery = (jetstream::Message, u64);

impl Sitting {
    pub(super) fn new(consumer: PullConsumer, strict: Option<(u64, u64)>) -> Self {
        Self { consumer, pull: None, strict }
    }

    /// Asks for as many messages as there is room for, unless a pull is under way. Not cancel-safe: what a forgotten
    /// pull delivers is delivered to nobody.
    pub(super) async fn pull(&mut self, room: usize) -> Result<(), String> {
        if self.pull.is_some() || room == 0 {
            return Ok(());
        }
        let asked = self.consumer.batch().max_messages(room).expires(EXPIRES).messages();
        let batch = match timeout(ANSWER_WITHIN, asked).await {
            Ok(Ok(batch)) => batch,
            Ok(Err(error)) => return Err(format!("pull: {error}")),
            Err(_) => return Err("a pull could not be sent".to_owned()),
        };
        self.pull = Some(Pull { batch, deadline: Instant::now() + EXPIRES + ANSWER_WITHIN });
        Ok(())
    }

    /// The next message; `None` when the server answers that there is nothing more for now; an error when the
    /// consumer is lost. Waits for ever when no pull is under way. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Option<Delivery>, String> {
        let Some(pull) = &mut self.pull else { return std::future::pending().await };
        match timeout_at(pull.deadline, pull.batch.next()).await {
            Ok(Some(Ok(message))) => self.checked(message),
            Ok(Some(Err(error))) => {
                self.pull = None;
                Err(error.to_string())
            }
            Ok(None) => {
                self.pull = None;
                Ok(None)
            }
            Err(_) => Err("a pull was not answered".to_owned()),
        }
    }

    /// With strict order: no delivery may have gone missing before this one.
    fn checked(&mut self, message: jetstream::Message) -> Result<Option<Delivery>, String> {
        let Some((delivered, first_deliveries)) = &mut self.strict else {
            return Ok(Some((message, 0)));
        };
        let Ok(sequence) = message.info().map(|info| info.consumer_sequence) else {
            return Err("a delivery without its sequence".to_owned());
        };
        if sequence != *delivered + 1 {
            return Err(format!(
                "deliveries {} to {} went elsewhere",
                *delivered + 1,
                sequence.saturating_sub(1)
            ));
        }
        *delivered = sequence;
        Ok(Some((message, std::mem::take(first_deliveries))))
    }
}
