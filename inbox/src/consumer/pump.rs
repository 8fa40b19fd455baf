//! The consumer's loop: pull, queue, hand out, acknowledge.

mod drain;
mod lines;
mod start;

use std::{sync::Arc, time::Duration};

use async_nats::{
    Subscriber,
    connection::State,
    jetstream::{self, AckKind},
};
use futures_util::StreamExt;
use oncebox_claims::{backoff::Backoff, failure::text};
use tokio::{
    sync::mpsc,
    task::{JoinError, JoinSet},
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    Order, Settings,
    dead_letter_publisher::{self, DeadLetterPublisher},
    filter, held_message,
    interruption::Interruption,
    large::Fetcher,
    leader_lock::LeaderLock,
    mode::{Mode, run_worker},
    pull_session::{PullSession, SessionEnd},
    setup,
    worker::{Answer, HeldMessages, Worker},
};
use crate::{Error, inbox::Shared};

const REBUILD: Backoff = Backoff { first: Duration::from_millis(100), max: Duration::from_secs(1) };
/// How often the consumer looks at a client that is not connected: requests fail only after
/// seconds.
const RECONNECT: Duration = Duration::from_millis(50);
/// Stands for "never": far in the future, without an overflow when it is added to a time.
const FAR: Duration = Duration::from_secs(86_400 * 365 * 30);

pub(super) async fn run<M: Mode>(
    jetstream: jetstream::Context,
    settings: Settings,
    mode: Arc<M>,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    dead_letter_publisher::check(&jetstream, &settings).await?;
    filter::check(&setup::stream(&jetstream, &settings).await?, &settings.filter_subjects).await?;
    announce::<M>(&settings, &mode.inbox().shared);
    let client = jetstream.client();
    let pulse = client.subscribe(client.new_inbox()).await;
    let pulse = pulse.map_err(|error| Error::Broker("subscribe".to_owned(), error.into()))?;
    let dead_letters = DeadLetterPublisher::new(&jetstream, &settings, mode.inbox());
    let (held, answers) = HeldMessages::new();
    let mut pump = Pump {
        jetstream,
        pulse,
        settings,
        mode,
        shutdown,
        dead_letters: dead_letters.map(Arc::new),
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
        let stop = match pump.start().await {
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

/// Logs the stream that is consumed, and how.
fn announce<M: Mode>(settings: &Settings, inbox: &Shared) {
    info!(
        stream = settings.stream,
        durable = settings.durable,
        scope = inbox.scope(),
        filter = if settings.filter_subjects.is_empty() { ">".to_owned() } else { settings.filter_subjects.join(", ") },
        mode = M::NAME,
        order = ?settings.order,
        concurrency = settings.concurrency,
        batch = settings.batch_size,
        ack_wait = ?settings.ack_wait(),
        max_ack_pending = settings.max_ack_pending(),
        hold_max = ?settings.hold_max,
        "the consumer starts"
    );
}

struct Pump<M: Mode> {
    jetstream: jetstream::Context,
    /// A subscription to which nothing is sent. It ends when the client ends for good.
    pulse: Subscriber,
    settings: Settings,
    mode: Arc<M>,
    shutdown: CancellationToken,
    dead_letters: Option<Arc<DeadLetterPublisher<M::Driver>>>,
    held: Arc<HeldMessages>,
    answers: mpsc::UnboundedReceiver<Answer>,
    tasks: JoinSet<()>,
    /// The leader lock, with strict order.
    leader_lock: Option<LeaderLock<M::Driver>>,
    stream_created: Option<String>,
    interruption: Interruption,
    /// How many pull sessions in a row were lost without a message.
    barren: u64,
}

impl<M: Mode> Pump<M> {
    async fn consume(&mut self, mut session: PullSession) -> SessionEnd {
        let end = self.consume_until_end(&mut session).await;
        // With a strict order, messages without a worker come again, in their places.
        if matches!(end, SessionEnd::Shutdown) && self.settings.order != Order::Strict {
            for (message, extra_deliveries) in session.close().await {
                self.take(message, extra_deliveries);
            }
        }
        end
    }

    async fn consume_until_end(&mut self, session: &mut PullSession) -> SessionEnd {
        let mut beat = interval(self.settings.ack_wait() / 3);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut look = interval(Duration::from_secs(1));
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let counters = Arc::clone(&self.mode.inbox().shared.counters);
        let _consuming = counters.consuming.begin();
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
                () = self.held.line_moved.notified() => self.take_of_lines().await,
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
                _ = look.tick() => {
                    if let Some(leader_lock) = &mut self.leader_lock && !leader_lock.is_alive().await {
                        self.leader_lock = None;
                        return SessionEnd::Lost("the connection that holds the right to consume is gone".to_owned());
                    }
                    self.take_of_lines().await;
                }
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
        // A copy of a held message is dropped: the held one settles both.
        self.held.queue().push(id, ordering_key, held);
    }

    /// As many workers as there are messages ready, up to the limit; one at work takes them as
    /// well.
    fn hand_out(&mut self) {
        let room = self.settings.concurrency.saturating_sub(self.tasks.len());
        let batch_size = self.settings.batch_size;
        for _ in 0..room.min(self.held.queue().ready().div_ceil(batch_size)) {
            let bytes_max = self.settings.object_bytes_max;
            let fetcher = Fetcher { jetstream: self.jetstream.clone(), bytes_max };
            let (inbox, mode) = (self.mode.inbox().shared.clone(), Arc::clone(&self.mode));
            let (held, shutdown) = (Arc::clone(&self.held), self.shutdown.clone());
            let worker = Worker::new(held, inbox, shutdown, self.dead_letters.clone(), fetcher);
            self.tasks.spawn(run_worker(worker, mode));
        }
    }

    /// Sends this answer to JetStream, and all others that wait; false when they cannot be sent.
    async fn tell(&mut self, (message, kind): Answer) -> bool {
        let inbox = &self.mode.inbox().shared;
        let mut is_sent = held_message::answer(inbox, &message, kind).await;
        while is_sent && let Ok((message, kind)) = self.answers.try_recv() {
            is_sent = held_message::answer(inbox, &message, kind).await;
        }
        is_sent
    }

    fn joined(&self, done: Result<(), JoinError>) {
        if let Err(error) = done {
            warn!(%error, "a worker of the consumer ended by itself; its message is run again");
        }
    }

    /// Asks JetStream for more time for the held messages, except for those that came a moment ago.
    /// False when nothing can be sent.
    async fn report_progress(&self) -> bool {
        let is_due = self.settings.ack_wait() / 3..self.settings.hold_max;
        let messages: Vec<_> = {
            let queue = self.held.queue();
            let due = queue.messages().filter(|held| is_due.contains(&held.held_since.elapsed()));
            due.filter_map(|held| held.message.clone()).collect()
        };
        let inbox = &self.mode.inbox().shared;
        for message in messages {
            if !held_message::answer(inbox, &message, AckKind::Progress).await {
                return false;
            }
        }
        true
    }

    /// Waits until it is worth trying again, then answers `None`. A shutdown, and a client that is
    /// closed for good, end the waiting at once.
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
}
