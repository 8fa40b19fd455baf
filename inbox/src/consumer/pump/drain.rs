//! The shutdown of a consumer.

use std::{sync::Arc, time::Duration};

use async_nats::jetstream::{self, AckKind};
use tokio::time::{Instant, interval, timeout, timeout_at};
use tracing::warn;

use super::{FAR, Pump};
use crate::{
    consumer::{held_message, mode::Mode},
    inbox::Shared,
};

const GIVE_BACK: Duration = Duration::from_millis(100);
const FLUSH_MAX: Duration = Duration::from_secs(5);

impl<M: Mode> Pump<M> {
    /// Gives back the messages without a worker, and lets the rest finish within the grace period.
    /// Answers may get lost: a client that is not connected takes no more than its queue holds.
    pub(super) async fn drain(&mut self) {
        let deadline = Instant::now() + self.settings.grace.min(FAR);
        let idle = self.held.queue().drain_idle();
        give_back(&self.mode.inbox().shared, idle.into_iter().filter_map(|held| held.message)).await;
        let mut beat = interval(self.settings.ack_wait() / 3);
        while !self.tasks.is_empty() {
            tokio::select! {
                done = timeout_at(deadline, self.tasks.join_next()) => match done {
                    Ok(Some(done)) => self.joined(done),
                    Ok(None) => break,
                    Err(_) => {
                        warn!(workers = self.tasks.len(), "the grace period is over; handlers are cut off");
                        self.tasks.shutdown().await;
                        break;
                    }
                },
                Some(answer) = self.answers.recv() => { self.tell(answer).await; }
                _ = beat.tick() => { self.report_progress().await; }
            }
        }
        if let Ok(answer) = self.answers.try_recv() {
            self.tell(answer).await;
        }
        // Cut off, or to be run again.
        give_back(&self.mode.inbox().shared, self.held.messages()).await;
        let _ = timeout(FLUSH_MAX, self.jetstream.client().flush()).await;
    }
}

async fn give_back(inbox: &Shared, messages: impl IntoIterator<Item = Arc<jetstream::Message>>) {
    for message in messages {
        if !held_message::answer(inbox, &message, AckKind::Nak(Some(GIVE_BACK))).await {
            return;
        }
    }
}
