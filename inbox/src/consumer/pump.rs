//! The consumer's loop: pull, queue, hand out, acknowledge.

use std::{sync::Arc, time::Duration};

use async_nats::{
    Subscriber,
    connection::State,
    jetstream::{self, AckKind, stream::Stream},
};
use futures_util::StreamExt;
use oncebox_claims::{backoff::Backoff, failure::text};
use tokio::{
    sync::mpsc,
    task::{JoinError, JoinSet},
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    Order, Settings,
    dead_letter_publisher::{self, DeadLetterPublisher},
    filter, held_message,
    interruption::Interruption,
    leader_lock::{self, Election, LeaderLock},
    mode::{Mode, run_worker},
    pull_session::{PullSession, SessionEnd},
    setup, strict_order, unreadable,
    worker::{Answer, Held, Worker},
};
use crate::{Error, Inbox};

const REBUILD: Backoff = Backoff { first: Duration::from_millis(100), max: Duration::from_secs(1) };
/// How often a client that is not connected is looked at: what it is asked meanwhile fails only after seconds.
const RECONNECT: Duration = Duration::from_millis(50);
const STANDBY: Duration = Duration::from_millis(500);
/// As good as for ever, and no overflow.
const FAR: Duration = Duration::from_secs(86_400 * 365 * 30);
const GIVE_BACK: Duration = Duration::from_millis(100);
const FLUSH_MAX: Duration = Duration::from_secs(5);

pub(super) async fn run<H: Mode>(
    jetstream: jetstream::Context,
    settings: Settings,
    inbox: Inbox,
    handler: Arc<H>,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    dead_letter_publisher::check(&jetstream, &settings).await?;
    filter::check(&setup::stream(&jetstream, &settings).await?, &settings).await?;
    announce::<H>(&settings, &inbox);
    let client = jetstream.client();
    let pulse = client.subscribe(client.new_inbox()).await;
    let pulse = pulse.map_err(|error| Error::Broker("subscribe".to_owned(), error.into()))?;
    let dead_letters = DeadLetterPublisher::new(&jetstream, &settings, &inbox).map(Arc::new);
    let (held, answers) = Held::new();
    let mut pump = Pump {
        jetstream,
        pulse,
        settings,
        inbox,
        handler,
        shutdown,
        dead_letters,
        held,
        answers,
        tasks: JoinSet::new(),
        leader_lock: None,
        stream_created: None,
        interruption: Interruption::default(),
        barren: 0,
    };
    let (mut started, mut result) = (false, Ok(()));
    while !pump.shutdown.is_cancelled() {
        let stop = match pump.sit_down().await {
            Ok(None) => break,
            Ok(Some(session)) => {
                started = true;
                pump.barren += 1;
                pump.consume(session).await
            }
            Err(error) if !started => return Err(error),
            Err(error) => SessionEnd::Lost(text(&error)),
        };
        let stop = match stop {
            SessionEnd::Lost(reason) => pump.pause(&reason).await,
            stop => Some(stop),
        };
        let Some(stop) = stop else { continue };
        if matches!(stop, SessionEnd::Closed) {
            let what = format!("consume stream \"{}\"", pump.settings.stream);
            result = Err(Error::Broker(what, "the client of NATS is closed for good".into()));
        }
        break;
    }
    pump.drain().await;
    result
}

/// What is consumed, and how.
fn announce<H: Mode>(settings: &Settings, inbox: &Inbox) {
    info!(
        stream = settings.stream,
        durable = settings.durable,
        scope = inbox.scope(),
        filter = if settings.filter_subject.is_empty() { ">" } else { &settings.filter_subject },
        mode = H::NAME,
        order = ?settings.order,
        concurrency = settings.concurrency,
        batch = settings.batch_size,
        ack_wait = ?settings.ack_wait(),
        max_ack_pending = settings.max_ack_pending(),
        hold_max = ?settings.hold_max,
        "the consumer starts"
    );
}

struct Pump<H> {
    jetstream: jetstream::Context,
    /// Nothing comes here; it ends with the client.
    pulse: Subscriber,
    settings: Settings,
    inbox: Inbox,
    handler: Arc<H>,
    shutdown: CancellationToken,
    dead_letters: Option<Arc<DeadLetterPublisher>>,
    held: Arc<Held>,
    answers: mpsc::UnboundedReceiver<Answer>,
    tasks: JoinSet<()>,
    /// The right to consume, with strict order.
    leader_lock: Option<LeaderLock>,
    stream_created: Option<String>,
    interruption: Interruption,
    /// Sittings in a row that were lost without a message.
    barren: u64,
}

impl<H: Mode> Pump<H> {
    /// Everything that consuming needs; `None` on shutdown.
    async fn sit_down(&mut self) -> Result<Option<PullSession>, Error> {
        // It may have ended while NATS was away, and with it the right to consume.
        if let Some(leader_lock) = &self.leader_lock
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
        let Some(leader_lock) = &self.leader_lock else {
            let consumer = setup::consumer(&stream, &self.settings).await?;
            return PullSession::new(&self.jetstream, consumer, None).await.map(Some);
        };
        // What nobody works on comes again, in its place.
        self.held.queue().drain_idle();
        let continued =
            strict_order::continued(&self.inbox, leader_lock, &stream, &self.settings, took_over).await?;
        PullSession::new(&self.jetstream, continued.consumer, Some(continued.place)).await.map(Some)
    }

    /// Where messages come again, or none gets through, some may be of a kind that no client can read.
    async fn give_up_unreadable(&self, stream: &Stream) {
        let look = async {
            let found = setup::info(stream, &self.settings).await?;
            let comes_again = found.is_some_and(|info| info.num_redelivered > 0);
            if !comes_again && self.barren < 2 {
                return Ok(());
            }
            let dead_letters = self.dead_letters.as_deref();
            unreadable::give_up(&self.jetstream, stream, &self.settings, &self.inbox, dead_letters).await
        };
        if let Err(error) = look.await {
            let stream = &self.settings.stream;
            warn!(stream, "messages that nobody can read cannot be looked for: {}", text(&error));
        }
    }

    /// Waits until no other process consumes, with one connection; false on shutdown.
    async fn stand_by(&mut self) -> Result<bool, Error> {
        let (stream, durable) = (&self.settings.stream, &self.settings.durable);
        let mut candidate =
            leader_lock::candidate(&self.inbox.database, self.inbox.scope(), stream, durable).await?;
        let mut standing_by = false;
        loop {
            candidate = match candidate.ask().await? {
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

    async fn consume(&mut self, mut session: PullSession) -> SessionEnd {
        let mut beat = interval(self.settings.ack_wait() / 3);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut look = interval(Duration::from_secs(1));
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let inbox = self.inbox.clone();
        let _consuming = inbox.counters.consuming.begin();
        loop {
            self.hand_out();
            let (room, due) = {
                let queue = self.held.queue();
                (self.settings.room(queue.len(), queue.weight()), queue.wake_at())
            };
            if let Err(stop) = session.pull(room).await {
                return stop;
            }
            let far = Instant::now() + FAR;
            tokio::select! {
                () = self.shutdown.cancelled() => return SessionEnd::Shutdown,
                Some(answer) = self.answers.recv() => if !self.tell(answer).await {
                    return SessionEnd::Lost("an acknowledgement could not be sent".to_owned());
                },
                () = self.held.changed.notified() => {}
                Some(done) = self.tasks.join_next() => self.joined(done),
                item = session.next() => match item {
                    Ok(Some((message, extra_deliveries))) => self.take(message, extra_deliveries),
                    Ok(None) => self.interruption.end(&self.settings),
                    Err(stop) => return stop,
                },
                () = sleep_until(due.unwrap_or(far)), if due.is_some() => {
                    self.held.queue().wake(Instant::now());
                }
                _ = beat.tick() => if !self.report_progress().await {
                    return SessionEnd::Lost("a sign of progress could not be sent".to_owned());
                },
                _ = look.tick() => if let Some(leader_lock) = &self.leader_lock && !leader_lock.is_alive().await {
                    self.leader_lock = None;
                    return SessionEnd::Lost("the connection that holds the right to consume is gone".to_owned());
                },
            }
        }
    }

    fn take(&mut self, message: jetstream::Message, extra_deliveries: u64) {
        self.interruption.end(&self.settings);
        self.barren = 0;
        let subject = message.subject.clone();
        let Some((id, held)) = held_message::receive(message, extra_deliveries) else {
            warn!(%subject, "a message without delivery information is ignored");
            return;
        };
        let ordering_key = held.received.ordering_key().map(str::to_owned);
        // A copy of what is held is dropped: the held one settles both.
        self.held.queue().push(id, ordering_key, held);
    }

    /// As many workers as there are messages ready, up to the limit; one at work takes them as well.
    fn hand_out(&mut self) {
        let room = self.settings.concurrency.saturating_sub(self.tasks.len());
        let batch_size = self.settings.batch_size;
        for _ in 0..room.min(self.held.queue().ready().div_ceil(batch_size)) {
            let (inbox, handler) = (self.inbox.clone(), Arc::clone(&self.handler));
            let (held, shutdown) = (Arc::clone(&self.held), self.shutdown.clone());
            let worker = Worker::new(held, inbox.clone(), shutdown, self.dead_letters.clone());
            self.tasks.spawn(run_worker(worker, inbox, handler));
        }
    }

    /// Tells JetStream this and whatever else is to be told; false when that cannot be sent.
    async fn tell(&mut self, (message, kind): Answer) -> bool {
        let mut is_sent = held_message::answer(&message, kind).await;
        while is_sent && let Ok((message, kind)) = self.answers.try_recv() {
            is_sent = held_message::answer(&message, kind).await;
        }
        is_sent
    }

    fn joined(&self, done: Result<(), JoinError>) {
        if let Err(error) = done {
            warn!(%error, "a worker of the consumer ended by itself; its message is run again");
        }
    }

    /// What came a moment ago has time until the next sign. False when nothing can be sent.
    async fn report_progress(&self) -> bool {
        let is_due = self.settings.ack_wait() / 3..self.settings.hold_max;
        let messages: Vec<_> = {
            let queue = self.held.queue();
            let due = queue.messages().filter(|held| is_due.contains(&held.held_since.elapsed()));
            due.map(|held| Arc::clone(&held.message)).collect()
        };
        for message in messages {
            if !held_message::answer(&message, AckKind::Progress).await {
                return false;
            }
        }
        true
    }

    /// Until it is worth trying again, unless it never is.
    async fn pause(&mut self, reason: &str) -> Option<SessionEnd> {
        self.interruption.failures += 1;
        self.interruption.remind(&self.settings, reason);
        let mut wait = REBUILD.after(self.interruption.failures);
        loop {
            tokio::select! {
                () = self.shutdown.cancelled() => return Some(SessionEnd::Shutdown),
                None = self.pulse.next() => return Some(SessionEnd::Closed),
                () = tokio::time::sleep(wait) => {}
            }
            if self.jetstream.client().connection_state() == State::Connected {
                return None;
            }
            self.interruption.remind(&self.settings, reason);
            wait = RECONNECT;
        }
    }

    /// Gives back what nobody works on, and lets the rest finish within the grace period. Sends
    /// what can be sent: a client that is not connected takes no more than its queue holds.
    async fn drain(&mut self) {
        let deadline = Instant::now() + self.settings.grace.min(FAR);
        let idle = self.held.queue().drain_idle();
        give_back(idle.into_iter().map(|held| held.message)).await;
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
        give_back(self.held.messages()).await;
        let _ = timeout(FLUSH_MAX, self.jetstream.client().flush()).await;
    }
}

async fn give_back(messages: impl IntoIterator<Item = Arc<jetstream::Message>>) {
    for message in messages {
        if !held_message::answer(&message, AckKind::Nak(Some(GIVE_BACK))).await {
            return;
        }
    }
}
