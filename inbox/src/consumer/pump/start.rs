//! Everything that a pull session needs: the leader lock, the stream, the durable consumer.

use std::time::Duration;

use async_nats::jetstream::stream::Stream;
use oncebox_claims::failure::text;
use tracing::{info, warn};

use super::Pump;
use crate::{
    Error,
    consumer::{
        Order,
        interruption::Interruption,
        leader_lock::{Election, LeaderCandidate, Position},
        mode::Mode,
        pull_session::PullSession,
        setup, strict_order, unreadable,
    },
};

/// Between two questions for the leader lock.
const STANDBY: Duration = Duration::from_millis(500);

impl<M: Mode> Pump<M> {
    /// Everything that consuming needs; `None` on shutdown.
    pub(super) async fn start(&mut self) -> Result<Option<PullSession>, Error> {
        // It may have ended while NATS was away, and with it the right to consume.
        if let Some(leader_lock) = &mut self.leader_lock
            && !leader_lock.is_alive().await
        {
            self.leader_lock = None;
        }
        let took_over = match self.settings.order {
            Order::Strict if self.leader_lock.is_none() => {
                if !self.stand_by().await? {
                    return Ok(None);
                }
                true
            }
            Order::Strict | Order::PerProcess => false,
        };
        let stream = setup::stream(&self.jetstream, &self.settings).await?;
        let created = stream.cached_info().created.to_string();
        if self.stream_created.as_ref().is_some_and(|known| *known != created) {
            // Acknowledgements go by sequence number: an old message's would settle a new one.
            warn!(
                stream = self.settings.stream,
                "the stream was recreated; what was held of the old one is dropped"
            );
            self.tasks.shutdown().await;
            while self.answers.try_recv().is_ok() {}
            self.held.queue().clear();
        }
        self.stream_created = Some(created);
        self.give_up_unreadable(&stream).await;
        if self.leader_lock.is_none() {
            let consumer = setup::consumer(&stream, &self.settings).await?;
            self.follow_lines().await?;
            return PullSession::new(&self.jetstream, consumer, None).await.map(Some);
        }
        // Messages without a worker come again, in their places.
        self.held.queue().drain_idle();
        let database = &self.mode.inbox().database;
        let continued = strict_order::continued(database, &stream, &self.settings, took_over).await?;
        self.follow_lines().await?;
        PullSession::new(&self.jetstream, continued.consumer, Some(continued.place)).await.map(Some)
    }

    /// Where messages come again, or none gets through, some may be of a kind that no client can
    /// read.
    async fn give_up_unreadable(&self, stream: &Stream) {
        let look = async {
            let found = setup::info(stream, &self.settings).await?;
            let comes_again = found.is_some_and(|info| info.num_redelivered > 0);
            if !comes_again && self.barren < 2 {
                return Ok(());
            }
            let dead_letters = self.dead_letters.as_deref();
            unreadable::give_up(&self.jetstream, stream, &self.settings, self.mode.inbox(), dead_letters)
                .await
        };
        if let Err(error) = look.await {
            let stream = &self.settings.stream;
            warn!(stream, "messages that nobody can read cannot be looked for: {}", text(&error));
        }
    }

    /// Waits until no other process consumes, with one connection; false on shutdown.
    async fn stand_by(&mut self) -> Result<bool, Error> {
        let (stream, durable) = (&self.settings.stream, &self.settings.durable);
        let inbox = self.mode.inbox().clone();
        let position = Position { stream, durable, stream_created: "" };
        let mut candidate = LeaderCandidate::begin(&inbox.database, inbox.scope(), position).await?;
        let mut standing_by = false;
        loop {
            candidate = match candidate.ask(&inbox.database, inbox.scope(), position).await? {
                Election::Won(leader_lock) => {
                    self.leader_lock = Some(leader_lock);
                    info!(stream, durable, "this process consumes, in strict order");
                    return Ok(true);
                }
                Election::Lost(candidate) => candidate,
            };
            if !standing_by {
                info!(stream, durable, "standing by while another process consumes, in strict order");
                standing_by = true;
                self.interruption = Interruption::default();
            }
            tokio::select! {
                () = self.shutdown.cancelled() => return Ok(false),
                () = tokio::time::sleep(STANDBY) => {}
            }
        }
    }
}
