//! The consumer's loop: pull, queue, hand out, acknowledge.

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_nats::jetstream::{self, AckKind};
use tokio::{
    task::{self, JoinError, JoinSet},
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    Order, Settings,
    queue::{Id, Queue},
    setup,
    sitting::Sitting,
    strict,
    work::{self, Job, Next},
};
use crate::{
    Error, Handler, Inbox,
    failure::{Backoff, text},
    store::Lead,
};

const REBUILD: Backoff = Backoff { first: Duration::from_millis(100), max: Duration::from_secs(5) };
const STANDBY: Duration = Duration::from_millis(500);
const GIVE_BACK: Duration = Duration::from_millis(100);
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// Why a sitting ended.
#[derive(Debug)]
enum Stop {
    Shutdown,
    Lost(String),
}

pub(super) async fn run<H: Handler + 'static>(
    jetstream: jetstream::Context,
    settings: Settings,
    inbox: Inbox,
    handler: Arc<H>,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let mut pump = Pump {
        jetstream,
        settings,
        inbox,
        handler,
        shutdown,
        queue: Queue::new(),
        tasks: JoinSet::new(),
        running: HashMap::new(),
        lead: None,
        stream_created: None,
        failures: 0,
    };
    let mut started = false;
    while !pump.shutdown.is_cancelled() {
        let stop = match pump.sit_down().await {
            Ok(None) => break,
            Ok(Some(sitting)) => {
                started = true;
                pump.consume(sitting).await
            }
            Err(error) if !started => return Err(error),
            Err(error) => Stop::Lost(text(&error)),
        };
        match stop {
            Stop::Shutdown => break,
            Stop::Lost(reason) => pump.pause(&reason).await,
        }
    }
    pump.drain().await;
    Ok(())
}

struct Pump<H> {
    jetstream: jetstream::Context,
    settings: Settings,
    inbox: Inbox,
    handler: Arc<H>,
    shutdown: CancellationToken,
    queue: Queue<Job>,
    tasks: JoinSet<(Id, Next)>,
    /// Which message a task works on, for a task that panics: that would be a mistake of ours, not the handler's.
    running: HashMap<task::Id, Id>,
    /// The right to consume, with strict order.
    lead: Option<Lead>,
    stream_created: Option<String>,
    /// Sittings in a row that failed.
    failures: u64,
}

impl<H: Handler + 'static> Pump<H> {
    /// Everything that consuming needs; `None` on shutdown.
    async fn sit_down(&mut self) -> Result<Option<Sitting>, Error> {
        let took_over = match self.settings.order {
            Order::Strict if self.lead.is_none() => {
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
            self.running.clear();
            self.queue = Queue::new();
        }
        self.stream_created = Some(created);
        let Some(lead) = &self.lead else {
            let consumer = setup::consumer(&stream, &self.settings).await?;
            return Ok(Some(Sitting::new(consumer, None)));
        };
        // What nobody works on comes again, in its place.
        self.queue.drain_idle();
        let continued = strict::continued(&self.inbox, lead, &stream, &self.settings, took_over).await?;
        Ok(Some(Sitting::new(continued.consumer, Some((continued.delivered, continued.first_deliveries)))))
    }

    /// Waits until no other process consumes; false on shutdown.
    async fn stand_by(&mut self) -> Result<bool, Error> {
        let (stream, durable) = (&self.settings.stream, &self.settings.durable);
        let mut standing_by = false;
        loop {
            self.lead = self.inbox.lead(stream, durable).await?;
            if self.lead.is_some() {
                info!(stream, durable, "this process consumes, in strict order");
                return Ok(true);
            }
            if !standing_by {
                info!(stream, durable, "standing by while another process consumes, in strict order");
                standing_by = true;
            }
            tokio::select! {
                () = self.shutdown.cancelled() => return Ok(false),
                () = tokio::time::sleep(STANDBY) => {}
            }
        }
    }

    async fn consume(&mut self, mut sitting: Sitting) -> Stop {
        let mut beat = interval(self.settings.ack_wait / 3);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut look = interval(Duration::from_secs(1));
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.hand_out();
            let room = self.settings.room().saturating_sub(self.queue.len());
            if let Err(reason) = sitting.pull(room).await {
                return Stop::Lost(reason);
            }
            let due = self.queue.wake_at();
            let far = Instant::now() + Duration::from_secs(3600);
            tokio::select! {
                () = self.shutdown.cancelled() => return Stop::Shutdown,
                Some(done) = self.tasks.join_next_with_id() => self.finished(done).await,
                item = sitting.next() => match item {
                    Ok(Some((message, extra_deliveries))) => self.take(message, extra_deliveries),
                    Ok(None) => self.recovered(),
                    Err(reason) => return Stop::Lost(reason),
                },
                () = sleep_until(due.unwrap_or(far)), if due.is_some() => self.queue.wake(Instant::now()),
                _ = beat.tick() => self.report_progress().await,
                _ = look.tick() => if let Some(lead) = &self.lead && !lead.is_alive().await {
                    self.lead = None;
                    return Stop::Lost("the connection that holds the right to consume is gone".to_owned());
                },
            }
        }
    }

    fn take(&mut self, message: jetstream::Message, extra_deliveries: u64) {
        self.recovered();
        let subject = message.subject.clone();
        let Some((id, job)) = work::receive(message, extra_deliveries) else {
            warn!(%subject, "a message without delivery information is ignored");
            return;
        };
        let ordering_key = job.received.ordering_key().map(str::to_owned);
        // A copy of what is held is dropped: the held one settles both.
        self.queue.push(id, ordering_key, job);
    }

    fn hand_out(&mut self) {
        while self.tasks.len() < self.settings.concurrency
            && let Some((id, job)) = self.queue.next()
        {
            let (inbox, handler) = (self.inbox.clone(), Arc::clone(&self.handler));
            let (received, waits) = (job.attempt(), job.waits);
            let task = self.tasks.spawn(async move {
                let next = work::run(&inbox, &*handler, &received, waits).await;
                (id, next)
            });
            self.running.insert(task.id(), id);
        }
    }

    async fn finished(&mut self, done: Result<(task::Id, (Id, Next)), JoinError>) {
        let (id, next) = match done {
            Ok((task, (id, next))) => {
                self.running.remove(&task);
                (id, next)
            }
            Err(error) => {
                let Some(id) = self.running.remove(&error.id()) else { return };
                warn!(%error, "a task of the consumer ended by itself");
                (id, Next::Retry(self.inbox.pause(1)))
            }
        };
        let Some(job) = self.queue.get_mut(id) else { return };
        let message = Arc::clone(&job.message);
        let kind = match next {
            Next::Ack => AckKind::Ack,
            Next::Term => AckKind::Term,
            Next::Wait(after) => {
                job.waits += 1;
                return self.queue.rest(id, Instant::now() + after);
            }
            Next::Retry(after) => {
                job.waits = 0;
                if job.received.ordering_key().is_some() {
                    job.retries += 1;
                    return self.queue.rest(id, Instant::now() + after);
                }
                AckKind::Nak(Some(after))
            }
        };
        work::answer(&message, kind).await;
        self.queue.remove(id);
    }

    async fn report_progress(&self) {
        for job in self.queue.messages() {
            if job.held_since.elapsed() < self.settings.hold_max {
                work::answer(&job.message, AckKind::Progress).await;
            }
        }
    }

    fn recovered(&mut self) {
        if self.failures > 0 {
            info!(stream = self.settings.stream, durable = self.settings.durable, "consuming again");
            self.failures = 0;
        }
    }

    async fn pause(&mut self, reason: &str) {
        self.failures += 1;
        if self.failures == 1 {
            let (stream, durable) = (&self.settings.stream, &self.settings.durable);
            warn!(stream, durable, "consuming interrupted, goes on when possible: {reason}");
        }
        tokio::select! {
            () = self.shutdown.cancelled() => {}
            () = tokio::time::sleep(REBUILD.after(self.failures)) => {}
        }
    }

    /// Gives back what nobody works on, and lets the rest finish within the grace period.
    async fn drain(&mut self) {
        let deadline = Instant::now() + self.settings.grace;
        for job in self.queue.drain_idle() {
            work::answer(&job.message, AckKind::Nak(Some(GIVE_BACK))).await;
        }
        let mut beat = interval(self.settings.ack_wait / 3);
        while !self.tasks.is_empty() {
            tokio::select! {
                done = timeout_at(deadline, self.tasks.join_next_with_id()) => match done {
                    Ok(Some(done)) => self.finished(done).await,
                    Ok(None) => break,
                    Err(_) => {
                        warn!(messages = self.tasks.len(), "the grace period is over; handlers are cut off");
                        self.tasks.shutdown().await;
                        break;
                    }
                },
                _ = beat.tick() => self.report_progress().await,
            }
        }
        // Cut off, or to be run again.
        for job in self.queue.messages() {
            work::answer(&job.message, AckKind::Nak(Some(GIVE_BACK))).await;
        }
        let _ = timeout(FLUSH_MAX, self.jetstream.client().flush()).await;
    }
}
