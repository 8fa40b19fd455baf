//! The load of a soak, and how often something happens.

use std::time::Duration;

use oncebox_tests::traffic::Steady;

use crate::{consumer::Handling, scenarios::USUAL, stage::Setup, turning::Ring};

/// From this number of messages on a soak takes long enough for samples and faults of each minute.
const LONG: u64 = 2_000_000;
const CONCURRENCY: usize = 4;
const BATCH: usize = 64;
/// The share of transactions that producers do not roll back.
const COMMITTED: f64 = 0.9;

/// A soak.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) steady: Steady,
    pub(crate) ring: Ring,
    pub(crate) sample_every: Duration,
    pub(crate) fault_every: Duration,
    /// A suspended relay can hold the ring up for a third of a short soak.
    pub(crate) suspends: bool,
    /// Samples before are not judged: tables are not as large yet as they will be.
    pub(crate) warm_up: Duration,
    /// How long the inbox keeps keys: for longer than a copy may come late.
    keys_kept: Duration,
    relay_options: &'static [(&'static str, &'static str)],
    postgres: &'static [(&'static str, &'static str)],
}

impl Plan {
    pub(crate) fn of(messages: u64) -> Self {
        let seconds = Duration::from_secs;
        let plan = if messages >= LONG {
            Self {
                steady: Steady { rate: 3_100, producers: 6, messages },
                ring: Ring { turn: seconds(5), retention: seconds(30) },
                sample_every: seconds(60),
                fault_every: seconds(60),
                suspends: true,
                warm_up: Duration::ZERO,
                keys_kept: seconds(180),
                relay_options: &[
                    ("ONCEBOX_RETENTION", "3m"),
                    ("ONCEBOX_OBJECT_STORE", "payloads"),
                    ("ONCEBOX_LARGE_PAYLOAD_BYTES", "65536"),
                ],
                postgres: &[],
            }
        } else {
            Self {
                steady: Steady { rate: 2_000, producers: 6, messages },
                ring: Ring { turn: seconds(2), retention: seconds(12) },
                sample_every: seconds(3),
                fault_every: seconds(15),
                suspends: false,
                warm_up: Duration::ZERO,
                keys_kept: seconds(25),
                relay_options: &[
                    ("ONCEBOX_RETENTION", "1m"),
                    ("ONCEBOX_OBJECT_STORE", "payloads"),
                    ("ONCEBOX_LARGE_PAYLOAD_BYTES", "65536"),
                ],
                // Else VACUUM comes to the inbox once in the whole time.
                postgres: &[("autovacuum_naptime", "'5s'")],
            }
        };
        // The inbox has its full size when VACUUM has come to the first keys that were deleted.
        let warm_up = plan.length().mul_f64(0.05).max(2 * plan.keys_kept + seconds(10));
        Self { warm_up, ..plan }
    }

    /// How long it takes if nothing is late.
    pub(crate) fn length(&self) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "seconds")]
        Duration::from_secs_f64(self.steady.messages as f64 / f64::from(self.steady.rate) / COMMITTED)
    }

    pub(crate) fn setup(&self) -> Setup {
        Setup {
            steady: Some(self.steady),
            handling: Handling { concurrency: CONCURRENCY, batch: BATCH, retention: Some(self.keys_kept) },
            options: self.relay_options,
            postgres: self.postgres,
            has_fleet: true,
            forgets: true,
            ..USUAL
        }
    }
}
