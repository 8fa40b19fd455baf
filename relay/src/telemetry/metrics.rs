//! Every metric of the relay, in one place; the table in docs/metrics.md lists the same.

use std::sync::{Arc, atomic::AtomicU64};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

use super::{health::Health, inboxes::InboxGauges};
use crate::delivery::{lag::Standing, minute::Minute};

type Seconds = Gauge<f64, AtomicU64>;

/// Label of the per-lane gauges.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LaneLabel {
    lane: i64,
}

/// Labels of the gauges of sagas: the type and the state.
type SagaLabels = [(&'static str, String); 2];

/// The metrics, and the health that `/livez` and `/readyz` look at. Clones share the same values.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    pub(crate) published: Counter,
    pub(crate) duplicate_acks: Counter,
    pub(crate) parked: Counter,
    pub(crate) died: Counter,
    pub(crate) pruned: Counter,
    pub(crate) losses: Counter,
    unrepaired_losses: Gauge,
    pauses: Gauge,
    pub(crate) claim_time: Histogram,
    pub(crate) publish_time: Histogram,
    pub(crate) settle_time: Histogram,
    pub(crate) batch_messages: Histogram,
    pub(crate) message_lag: Histogram,
    pub(crate) spans_dropped: Counter,
    pub(crate) serving: Gauge,
    pub(crate) asleep: Gauge,
    pub(crate) silent: Gauge,
    pub(crate) nats_connected: Gauge,
    pub(crate) nats_reconnects: Counter,
    pub(crate) nats_errors: Counter,
    pub(crate) postgres_errors: Counter,
    postgres_connected: Gauge,
    pass_age: Seconds,
    lag: Seconds,
    backlog: Gauge,
    lane_lag: Family<LaneLabel, Seconds>,
    lane_backlog: Family<LaneLabel, Gauge>,
    parked_messages: Gauge,
    dead_messages: Gauge,
    replay_messages: Gauge,
    delayed_messages: Gauge,
    delayed_late: Seconds,
    turn_late: Seconds,
    sagas: Family<SagaLabels, Gauge>,
    saga_oldest: Family<SagaLabels, Seconds>,
    finished_sagas: Family<SagaLabels, Gauge>,
    inboxes: InboxGauges,
    pub(crate) health: Arc<Health>,
    pub(crate) minute: Arc<Minute>,
}

/// The buckets reach from a busy relay to an outage of a day.
const MESSAGE_LAG_SECONDS: [f64; 20] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0,
    3600.0, 21600.0, 86400.0,
];

fn time() -> Histogram {
    Histogram::new([
        0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    ])
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let postgres_connected = Gauge::default();
        // A relay starts by connecting.
        postgres_connected.set(1);
        Self {
            published: Counter::default(),
            duplicate_acks: Counter::default(),
            parked: Counter::default(),
            died: Counter::default(),
            pruned: Counter::default(),
            losses: Counter::default(),
            unrepaired_losses: Gauge::default(),
            pauses: Gauge::default(),
            claim_time: time(),
            publish_time: time(),
            settle_time: time(),
            batch_messages: Histogram::new([1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0]),
            message_lag: Histogram::new(MESSAGE_LAG_SECONDS),
            spans_dropped: Counter::default(),
            serving: Gauge::default(),
            asleep: Gauge::default(),
            silent: Gauge::default(),
            nats_connected: Gauge::default(),
            nats_reconnects: Counter::default(),
            nats_errors: Counter::default(),
            postgres_errors: Counter::default(),
            postgres_connected,
            pass_age: Seconds::default(),
            lag: Seconds::default(),
            backlog: Gauge::default(),
            lane_lag: Family::default(),
            lane_backlog: Family::default(),
            parked_messages: Gauge::default(),
            dead_messages: Gauge::default(),
            replay_messages: Gauge::default(),
            delayed_messages: Gauge::default(),
            delayed_late: Seconds::default(),
            turn_late: Seconds::default(),
            sagas: Family::default(),
            saga_oldest: Family::default(),
            finished_sagas: Family::default(),
            inboxes: InboxGauges::default(),
            health: Arc::new(Health::new()),
            minute: Arc::new(Minute::new()),
        }
    }

    /// The names and help texts, for `/metrics`; the name of the database is a label, where a
    /// process serves several.
    pub(crate) fn registry(&self, database: Option<&str>) -> Registry {
        let label = database.map(|name| ("database".into(), name.to_owned().into()));
        let mut all = Registry::with_prefix_and_labels("oncebox", label.into_iter());
        all.register("published", "Messages that JetStream acknowledged", self.published.clone());
        all.register("duplicate_acks", "Acknowledgements that said duplicate", self.duplicate_acks.clone());
        all.register("parked", "Times that a message was set aside", self.parked.clone());
        all.register("died", "Messages that were given up", self.died.clone());
        all.register("pruned", "Settled messages deleted after the retention time", self.pruned.clone());
        all.register_with_unit(
            "claim",
            "Claiming and reading lanes, also when nothing was due",
            Unit::Seconds,
            self.claim_time.clone(),
        );
        all.register_with_unit("publish", "Publishing a batch", Unit::Seconds, self.publish_time.clone());
        all.register_with_unit(
            "settle",
            "Settling a batch, without the commit",
            Unit::Seconds,
            self.settle_time.clone(),
        );
        all.register("batch_messages", "Messages in a batch", self.batch_messages.clone());
        all.register_with_unit(
            "message_lag",
            "Age of each message, since its enqueue, when JetStream stored it; replays left out",
            Unit::Seconds,
            self.message_lag.clone(),
        );
        all.register(
            "serving",
            "1 while the relay works for this database; 0 until it has reached both servers",
            self.serving.clone(),
        );
        all.register("nats_connected", "1 while connected to NATS", self.nats_connected.clone());
        all.register("nats_reconnects", "Connections to NATS that broke", self.nats_reconnects.clone());
        all.register("nats_errors", "Errors that NATS reported aside", self.nats_errors.clone());
        all.register(
            "postgres_connected",
            "1 while PostgreSQL answers; else lag and the messages set aside are as last read",
            self.postgres_connected.clone(),
        );
        all.register("postgres_errors", "Passes that PostgreSQL failed", self.postgres_errors.clone());
        all.register_with_unit(
            "pass_age",
            "Time since the worker that is silent longest got on; idle passes and failed ones count as getting on",
            Unit::Seconds,
            self.pass_age.clone(),
        );
        all.register_with_unit("lag", "Age of the oldest message due", Unit::Seconds, self.lag.clone());
        all.register("backlog_messages", "Messages due, exact up to 10000", self.backlog.clone());
        all.register_with_unit(
            "lane_lag",
            "Age of a lane's oldest message due",
            Unit::Seconds,
            self.lane_lag.clone(),
        );
        all.register("lane_backlog_messages", "A lane's messages due", self.lane_backlog.clone());
        self.register_set_aside(&mut all);
        self.register_waiting(&mut all);
        self.inboxes.register(&mut all);
        self.register_losses(&mut all);
        all.register(
            "spans_dropped",
            "Spans that the collector did not take in time",
            self.spans_dropped.clone(),
        );
        all
    }

    fn register_set_aside(&self, all: &mut Registry) {
        all.register(
            "parked_messages",
            "Messages set aside now, counted to 100000",
            self.parked_messages.clone(),
        );
        all.register("dead_messages", "Dead messages now, counted to 100000", self.dead_messages.clone());
        all.register(
            "replay_messages",
            "Replays still to be sent, counted to 100000",
            self.replay_messages.clone(),
        );
    }

    fn register_waiting(&self, all: &mut Registry) {
        all.register(
            "delayed_messages",
            "Delayed messages that are not yet in the log, counted to 10000",
            self.delayed_messages.clone(),
        );
        all.register_with_unit(
            "delayed_late",
            "How late the delayed message is that should have been moved into the log first",
            Unit::Seconds,
            self.delayed_late.clone(),
        );
        all.register_with_unit(
            "turn_late",
            "For how long the turn of the log should have ended; until it does, the log grows",
            Unit::Seconds,
            self.turn_late.clone(),
        );
        all.register(
            "sagas",
            "Sagas that have not finished, those of each version of a definition counted to 10000",
            self.sagas.clone(),
        );
        all.register_with_unit(
            "saga_oldest",
            "Age of the oldest saga of those",
            Unit::Seconds,
            self.saga_oldest.clone(),
        );
        all.register(
            "finished_sagas",
            "Sagas that finished in the last minute, counted to 10000",
            self.finished_sagas.clone(),
        );
    }

    fn register_losses(&self, all: &mut Registry) {
        all.register(
            "asleep",
            "1 while the relay sleeps (sleep_after), without a connection to PostgreSQL; other gauges are as last read",
            self.asleep.clone(),
        );
        all.register(
            "silent",
            "1 while the relay sends nothing, because its outbox is a copy of another database's, or may be",
            self.silent.clone(),
        );
        all.register(
            "losses",
            "Losses of acknowledged messages that this relay found, one for each lane and stream",
            self.losses.clone(),
        );
        all.register(
            "unrepaired_losses",
            "Losses of acknowledged messages that nobody has had sent again, one for each lane and stream",
            self.unrepaired_losses.clone(),
        );
        all.register("pauses", "Pauses and throttles of operators that have not ended", self.pauses.clone());
    }

    /// Messages due, as last read.
    pub(crate) fn backlog(&self) -> i64 {
        self.backlog.get()
    }

    pub(crate) fn observe(&self, standing: &Standing) {
        let Standing { lanes, parked, delayed, sagas, finished_sagas, inboxes, expectations } = standing;
        self.inboxes.observe(inboxes);
        self.inboxes.observe_expectations(expectations);
        for lane in lanes {
            let label = LaneLabel { lane: lane.lane.into() };
            self.lane_lag.get_or_create(&label).set(lane.lag_seconds);
            self.lane_backlog.get_or_create(&label).set(lane.backlog_messages);
        }
        self.lag.set(lanes.iter().map(|lane| lane.lag_seconds).fold(0.0, f64::max));
        self.backlog.set(lanes.iter().map(|lane| lane.backlog_messages).sum());
        self.parked_messages.set(parked.parked);
        self.dead_messages.set(parked.dead);
        self.replay_messages.set(parked.replays);
        self.unrepaired_losses.set(parked.losses);
        self.pauses.set(parked.pauses);
        self.delayed_messages.set(delayed.messages);
        self.delayed_late.set(delayed.late_seconds);
        self.turn_late.set(parked.turn_late_seconds);
        // A state in which no saga is any more has no series, until one is again.
        self.sagas.clear();
        self.saga_oldest.clear();
        self.finished_sagas.clear();
        for count in sagas {
            let labels = [("type", count.saga_type.clone()), ("state", count.state.clone())];
            self.sagas.get_or_create(&labels).set(count.sagas);
            self.saga_oldest.get_or_create(&labels).set(count.oldest_seconds);
        }
        for count in finished_sagas {
            let labels = [("type", count.saga_type.clone()), ("state", count.state.clone())];
            self.finished_sagas.get_or_create(&labels).set(count.sagas);
        }
    }

    /// The readings of a scrape that are taken at its moment.
    pub(crate) fn observe_now(&self) {
        self.pass_age.set(self.health.silence().as_secs_f64());
        self.postgres_connected.set(i64::from(!self.health.is_postgres_away()));
    }

    /// The reason why the relay does not work, if there is one.
    pub(crate) fn not_ready(&self) -> Option<String> {
        self.health.not_ready(self.nats_connected.get() == 1)
    }
}
