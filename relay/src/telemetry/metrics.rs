//! Every metric of the relay, in one place; the table in docs/metrics.md lists the same.

use std::sync::{Arc, atomic::AtomicU64};

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

use super::health::Health;
use crate::delivery::{Standing, lag::InboxStatus, minute::Minute};

type Float = Gauge<f64, AtomicU64>;
/// A gauge for each set of `LABELS` labels.
type Series<const LABELS: usize, G = Gauge> = Family<[(&'static str, String); LABELS], G>;

/// The scope of the inboxes that have no series of their own. No label is unbounded.
const OTHERS: &str = "(others)";

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

/// Declares each metric once, in the order of `/metrics`: its documentation is its help text there,
/// and its unit stands after its type.
macro_rules! metrics {
    (@new) => { Default::default() };
    (@new $new:expr) => { $new };
    (@register $all:ident $name:expr, $help:expr, $metric:expr) => {
        $all.register($name, $help, $metric)
    };
    (@register $all:ident $name:expr, $help:expr, $metric:expr, $unit:ident) => {
        $all.register_with_unit($name, $help, Unit::$unit, $metric)
    };
    ($($(#[doc = $help:literal])+ $name:ident: $kind:ty $(, $unit:ident)? $(= $new:expr)?;)+) => {
        /// The metrics, and the health that `/livez` and `/readyz` look at. Clones share the same
        /// values.
        #[derive(Clone, Debug)]
        pub(crate) struct Metrics {
            $($(#[doc = $help])+ pub(crate) $name: $kind,)+
            pub(crate) health: Arc<Health>,
            pub(crate) minute: Arc<Minute>,
        }

        impl Metrics {
            pub(crate) fn new() -> Self {
                let (health, minute) = (Arc::new(Health::new()), Arc::new(Minute::new()));
                let metrics = Self { $($name: metrics!(@new $($new)?),)+ health, minute };
                // A relay starts by connecting.
                metrics.postgres_connected.set(1);
                metrics
            }

            /// The names and help texts, for `/metrics`; the name of the database is a label, where
            /// a process serves several.
            pub(crate) fn registry(&self, database: Option<&str>) -> Registry {
                let label = database.map(|name| ("database".into(), name.to_owned().into()));
                let mut all = Registry::with_prefix_and_labels("oncebox", label.into_iter());
                $({
                    let help = concat!($($help),+).trim_start();
                    metrics!(@register all stringify!($name), help, self.$name.clone() $(, $unit)?);
                })+
                all
            }
        }
    };
}

metrics! {
    /// Messages that JetStream acknowledged
    published: Counter;
    /// Acknowledgements that said duplicate
    duplicate_acks: Counter;
    /// Times that a message was set aside
    parked: Counter;
    /// Messages that were given up
    died: Counter;
    /// Settled messages deleted after the retention time
    pruned: Counter;
    /// Claiming and reading lanes, also when nothing was due
    claim: Histogram, Seconds = time();
    /// Publishing a batch
    publish: Histogram, Seconds = time();
    /// Settling a batch, without the commit
    settle: Histogram, Seconds = time();
    /// Messages in a batch
    batch_messages: Histogram = Histogram::new([1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0]);
    /// Age of each message, since its enqueue, when JetStream stored it; replays left out
    message_lag: Histogram, Seconds = Histogram::new(MESSAGE_LAG_SECONDS);
    /// 1 while the relay works for this database; 0 until it has reached both servers
    serving: Gauge;
    /// 1 while connected to NATS
    nats_connected: Gauge;
    /// Connections to NATS that broke
    nats_reconnects: Counter;
    /// Errors that NATS reported aside
    nats_errors: Counter;
    /// 1 while PostgreSQL answers; else lag and the messages set aside are as last read
    postgres_connected: Gauge;
    /// Passes that PostgreSQL failed
    postgres_errors: Counter;
    /// Time since the worker that is silent longest got on; idle passes and failed ones count as
    /// getting on
    pass_age: Float, Seconds;
    /// Age of the oldest message due
    lag: Float, Seconds;
    /// Messages due, exact up to 10000
    backlog_messages: Gauge;
    /// Age of a lane's oldest message due
    lane_lag: Series<1, Float>, Seconds;
    /// A lane's messages due
    lane_backlog_messages: Series<1>;
    /// Messages set aside now, counted to 100000
    parked_messages: Gauge;
    /// Dead messages now, counted to 100000
    dead_messages: Gauge;
    /// Replays still to be sent, counted to 100000
    replay_messages: Gauge;
    /// Delayed messages that are not yet in the log, counted to 10000
    delayed_messages: Gauge;
    /// How late the delayed message is that should have been moved into the log first
    delayed_late: Float, Seconds;
    /// For how long the turn of the log should have ended; until it does, the log grows
    turn_late: Float, Seconds;
    /// Sagas that have not finished, those of each version of a definition counted to 10000
    sagas: Series<2>;
    /// Age of the oldest saga of those
    saga_oldest: Series<2, Float>, Seconds;
    /// Sagas that finished in the last minute, counted to 10000
    finished_sagas: Series<2>;
    // Services in any language are watched by these, without metrics of their own. The names differ
    // from those of the crate `oncebox-inbox`, whose metrics are those of one process.
    /// Messages of an inbox of this database of which an attempt has failed, and that have not
    /// ended, counted to its share of 1000
    inbox_failing_messages: Series<1>;
    /// For how long the oldest of those has been in its stream
    inbox_failing_oldest: Series<1, Float>, Seconds;
    /// Dead letters of an inbox of this database now, counted to its share of 1000
    inbox_dead_messages: Series<1>;
    /// Messages that an inbox of this database has snoozed, counted to its share of 1000
    inbox_snoozed_messages: Series<1>;
    /// 1 while one of the three numbers of an inbox is only a minimum: all inboxes together share
    /// 1000
    inbox_counts_capped: Series<1>;
    /// Messages that an expectation misses: not in their inbox in time, nor now, counted to 10000
    unhandled_messages: Series<3>;
    /// 1 while the relay sleeps (sleep_after), without a connection to PostgreSQL; other gauges are
    /// as last read
    asleep: Gauge;
    /// 1 while the relay sends nothing, because its outbox is a copy of another database's, or may
    /// be
    silent: Gauge;
    /// Losses of acknowledged messages that this relay found, one for each lane and stream
    losses: Counter;
    /// Losses of acknowledged messages that nobody has had sent again, one for each lane and stream
    unrepaired_losses: Gauge;
    /// Pauses and throttles of operators that have not ended
    pauses: Gauge;
    /// Spans that the collector did not take in time
    spans_dropped: Counter;
}

impl Metrics {
    /// Messages due, as last read.
    pub(crate) fn backlog(&self) -> i64 {
        self.backlog_messages.get()
    }

    pub(crate) fn observe(&self, standing: &Standing) {
        let Standing { lanes, parked, delayed, sagas, finished_sagas, inboxes, expectations } = standing;
        for lane in lanes {
            let label = [("lane", lane.lane.to_string())];
            self.lane_lag.get_or_create(&label).set(lane.lag_seconds);
            self.lane_backlog_messages.get_or_create(&label).set(lane.backlog_messages);
        }
        self.lag.set(lanes.iter().map(|lane| lane.lag_seconds).fold(0.0, f64::max));
        self.backlog_messages.set(lanes.iter().map(|lane| lane.backlog_messages).sum());
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
        self.observe_inboxes(inboxes);
        self.unhandled_messages.clear();
        // At most a hundred, by the subject and the inbox that operators have named.
        for expected in expectations {
            let labels = [
                ("subject", expected.subject.clone()),
                ("scope", expected.handled_by.clone()),
                ("inbox_database", expected.inbox_database.clone().unwrap_or_default()),
            ];
            self.unhandled_messages.get_or_create(&labels).set(expected.unhandled);
        }
    }

    /// An inbox that is gone has no series any more.
    fn observe_inboxes(&self, inboxes: &[InboxStatus]) {
        self.inbox_failing_messages.clear();
        self.inbox_failing_oldest.clear();
        self.inbox_dead_messages.clear();
        self.inbox_snoozed_messages.clear();
        self.inbox_counts_capped.clear();
        for inbox in inboxes {
            let scope = [("scope", inbox.scope.clone().unwrap_or_else(|| OTHERS.to_owned()))];
            self.inbox_failing_messages.get_or_create(&scope).set(inbox.failing);
            self.inbox_failing_oldest.get_or_create(&scope).set(inbox.failing_oldest_seconds);
            self.inbox_dead_messages.get_or_create(&scope).set(inbox.dead);
            self.inbox_snoozed_messages.get_or_create(&scope).set(inbox.snoozed);
            self.inbox_counts_capped.get_or_create(&scope).set(inbox.is_capped.into());
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
