//! The steps of one pass, each a value: claimed, published, settled.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};
use tracing::warn;

use super::{
    acknowledgements::Acknowledgements, budget::Share, held::HeldLanes, hot_key::HotKeys, plan::Plan,
    reading::Reading,
};
use crate::{
    clock::Clock,
    config::{ReadLimits, Tuning},
    delivery::{cursor::Settlement, message::Message, outcome::Outcome},
    error::{RelayError, StoreError},
    postgres::{
        Store,
        claim::{Claim, Seen, Wanted},
        receipts::Receipt,
        room::Room,
        session::Session,
    },
    telemetry::{metrics::Metrics, traces::Traces},
};

/// While the log alone fills the passes of a worker, it looks for parked messages so often only,
/// and they get one place of a pass in so many: each pass with parked messages costs some
/// statements and, often, a question to NATS.
const PARKED_EVERY: Duration = Duration::from_millis(250);
const PARKED_SHARE: i64 = 16;

/// The result of one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pass {
    /// NATS is away: nothing was claimed, no transaction is open.
    Away,
    /// Nothing was due.
    Idle,
    /// Messages were settled.
    Settled {
        /// How many, parked ones included.
        messages: usize,
        /// A limit may have cut the read: go again at once.
        full: bool,
    },
}

/// What a worker remembers of its last passes.
#[derive(Debug)]
pub(super) struct Memory {
    /// When parked messages were last looked for.
    looked: Option<Instant>,
    hot_keys: HotKeys,
    pub(super) reading: Reading,
    /// Somebody else had locked lanes into which something has come: they are asked for next.
    pub(super) has_left: bool,
}

impl Memory {
    pub(super) fn new() -> Self {
        Self { looked: None, hot_keys: HotKeys::default(), reading: Reading::new(), has_left: false }
    }
}

/// Lanes locked by an open transaction, and what is due in them.
#[derive(Debug)]
pub struct Claimed {
    pub(super) session: Session,
    pub(super) claims: Vec<Claim>,
    pub(crate) messages: Vec<Message>,
    clock: Clock,
    /// As many lanes, or parked messages, as asked for, or as there was room for: more may be due.
    full: bool,
    /// The limits that the lanes were read with.
    pub(super) limits: ReadLimits,
    /// Room for the payloads, given back with them.
    share: Share,
    /// All that was due is here, as far as nobody else had locked it.
    pub(super) seen: Option<Seen>,
    /// The pass has locked all lanes, and nothing is due in them but what has just come.
    pub(super) has_all: bool,
}

/// Claimed messages with what became of each.
#[derive(Debug)]
pub struct Published {
    pub(super) claimed: Claimed,
    pub(super) outcomes: Vec<Outcome>,
    /// The first message of the last round: see `rounds`.
    pub(super) round: usize,
}

/// Messages set aside and cursors ready to move, not committed yet.
#[derive(Debug)]
pub struct Settled {
    session: Session,
    settlements: Vec<(i16, Settlement)>,
    receipts: Vec<Receipt>,
    pass: Pass,
    /// All that was due is stored, and nothing was made due.
    pub(super) seen: Option<Seen>,
    /// Lanes in which a limit may have cut what was read.
    pub(super) cut_lanes: usize,
}

impl Claimed {
    /// Of `lanes_max` of the lanes that are wanted at most.
    pub(super) async fn new(
        store: &Arc<Store>,
        lanes_max: i64,
        wanted: Wanted<'_>,
        tuning: &Tuning,
        memory: &mut Memory,
        mut share: Share,
        held: &HeldLanes,
    ) -> Result<Option<Self>, StoreError> {
        let payload_max = share.payload_max();
        let left_out = held.left_out();
        let limits = held.limits(tuning.read.shared_by(memory.reading.share(lanes_max / tuning.lanes_max)));
        let before = Instant::now();
        let (session, mut lanes) = store.claim(lanes_max, &left_out, wanted, limits, payload_max).await?;
        let claimed = lanes.len();
        memory.has_left = lanes.has_left;
        if claimed == 0 {
            session.rollback().await?;
            return Ok(None);
        }
        let parked_due = std::mem::take(&mut lanes.parked_due);
        let lanes_full = claimed as i64 >= lanes_max && (claimed as i64) < store.lanes;
        let room = Room { payload_max, admit: &mut |bytes| share.admit(bytes) };
        let (claims, mut messages, seen) = session.read(lanes, limits, room).await?;
        let has_all = matches!(wanted, Wanted::All)
            && claims.len() as i64 == store.lanes
            && parked_due.is_empty()
            && claims.iter().all(Claim::is_plain);
        memory.hot_keys.give_way(&session, &claims, &mut messages, limits).await?;
        // Messages of the log that follow a parked one of their ordering key were read as blocked.
        // Under a backlog parked messages get a small share of a pass now and then: many of them,
        // tried in vain, must not slow the others.
        let mut parked_full = false;
        let is_full = messages.len() as i64 >= limits.messages_max;
        let is_time = !is_full || memory.looked.is_none_or(|looked| looked.elapsed() >= PARKED_EVERY);
        if !parked_due.is_empty() && is_time {
            memory.looked = Some(Instant::now());
            let parked_limits = parked_limits(tuning.read, is_full);
            share.begin();
            let room = Room { payload_max, admit: &mut |bytes| share.admit(bytes) };
            let (parked, is_full) = session.read_parked(&parked_due, parked_limits, room).await?;
            parked_full = is_full;
            messages.extend(parked);
        }
        share.lend(messages.iter_mut().map(|message| &mut message.payload));
        for claim in claims.iter().filter(|claim| claim.is_foreign) {
            warn!(
                lane = claim.lane,
                reset_until = claim.cursor.reset_until,
                "this database was restored from another cluster: what was due there is sent first"
            );
        }
        let clock = Clock { here: before, database: claims.iter().map(|claim| claim.read_at).min() };
        let is_cut = claims.len() < claimed || claims.iter().any(|claim| claim.is_cut);
        // Without room for anything it is better to wait for the other workers a little.
        let full = lanes_full || parked_full || is_cut && !messages.is_empty();
        let seen = seen.filter(|_| !is_cut && left_out.is_empty());
        Ok(Some(Self { session, claims, messages, clock, full, limits, share, seen, has_all }))
    }

    /// How many messages were read.
    #[must_use]
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether nothing was read: another relay was faster.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

impl Published {
    pub(crate) fn new(claimed: Claimed, mut outcomes: Vec<Outcome>) -> Self {
        outcomes.resize(claimed.messages.len(), Outcome::Unknown);
        Self { claimed, outcomes, round: 0 }
    }

    /// Takes back what a stream has acknowledged at a sequence that it had given out before: it has
    /// lost something, and until it was looked into nothing more is settled there. Returns which.
    pub(crate) fn distrust(&mut self) -> Option<String> {
        let Claimed { claims, messages, .. } = &self.claimed;
        let (before, round) = self.outcomes.split_at(self.round);
        let (stream, sequence) = {
            let acknowledged = Acknowledgements::new(claims, &messages[self.round..], round);
            let (stream, sequence) = acknowledged.regressed(before)?;
            (Arc::clone(stream), sequence)
        };
        for outcome in &mut self.outcomes {
            if matches!(outcome, Outcome::Stored { stream: of, .. } if **of == *stream) {
                *outcome = Outcome::Unknown;
            }
        }
        Some(format!("stream {stream} has given out the sequence {sequence} again: it has lost messages"))
    }

    /// Tells the metrics how old each message of the last round was when JetStream stored it (one
    /// stored earlier was told of then), and the traces what was sent.
    pub(crate) fn observe(&self, metrics: &Metrics, traces: Option<&Traces>) {
        let Claimed { messages, clock, .. } = &self.claimed;
        let (messages, outcomes) = (&messages[self.round..], &self.outcomes[self.round..]);
        if let Some(traces) = traces {
            traces.published(messages, outcomes);
        }
        for (message, outcome) in messages.iter().zip(outcomes) {
            if let Outcome::Stored { duplicate: false, acknowledged_at, .. } = outcome
                && message.replay.is_none()
            {
                metrics.message_lag.observe(clock.age(message.created_at, *acknowledged_at));
            }
        }
    }

    pub(super) async fn settle(
        self,
        tuning: &Tuning,
        metrics: &Metrics,
        held: &HeldLanes,
    ) -> Result<Settled, StoreError> {
        let Self { claimed, mut outcomes, .. } = self.in_order();
        let Claimed { session, claims, messages, full, limits, share: _share, seen, .. } = claimed;
        held.hold_back(&session, &claims, &messages, &mut outcomes).await?;
        let acknowledgements = Acknowledgements::new(&claims, &messages, &outcomes);
        let mut plan = Plan::new(full, tuning, &held.probes);
        for claim in &claims {
            plan.add_lane(claim, &messages, &outcomes, limits);
        }
        for (message, outcome) in
            messages.iter().zip(&outcomes).filter(|(message, _)| message.parked.is_some())
        {
            plan.add(message, outcome);
        }
        plan.observe(metrics);
        let receipts = acknowledgements.note(&mut plan.settlements);
        if !plan.parkings.is_empty() {
            session.park(&plan.parkings).await?;
        }
        if !plan.unparked.is_empty() {
            session.unpark(&plan.unparked).await?;
        }
        let groups = plan.released(limits);
        if !groups.is_empty() {
            session.release_waiting(&groups).await?;
        }
        let frees = !plan.freed.is_empty() || !groups.is_empty();
        if !plan.freed.is_empty() {
            let freed: Vec<(i16, &str)> = plan.freed.into_iter().collect();
            session.release(&freed, tuning.read.dead_blocks).await?;
        }
        let is_all = plan.done == messages.len() && !plan.full && plan.parkings.is_empty() && !frees;
        let seen = seen.filter(|_| is_all);
        let pass = Pass::Settled { messages: plan.done, full: plan.full };
        let (settlements, cut_lanes) = (plan.settlements, plan.cut_lanes);
        Ok(Settled { session, settlements, receipts, pass, seen, cut_lanes })
    }
}

impl Settled {
    /// Moves the cursors and commits, which frees the lanes.
    ///
    /// # Errors
    /// PostgreSQL went away: whether the commit happened is unknown. If not, the same messages are
    /// sent again.
    pub async fn commit(self) -> Result<Pass, RelayError> {
        bounded(self.session.settle_and_commit(&self.settlements, &self.receipts)).await?;
        Ok(self.pass)
    }
}

/// The share of a pass that parked messages get.
fn parked_limits(limits: ReadLimits, is_full: bool) -> ReadLimits {
    if !is_full {
        return limits;
    }
    let share = |limit: i64| (limit / PARKED_SHARE).max(1);
    ReadLimits { messages_max: share(limits.messages_max), bytes_max: share(limits.bytes_max), ..limits }
}

/// Every statement has a deadline of the server; this one is for a server that no longer answers.
pub(super) async fn bounded<T>(step: impl Future<Output = Result<T, StoreError>>) -> Result<T, RelayError> {
    match timeout(Duration::from_secs(45), step).await {
        Ok(result) => result.map_err(RelayError::store),
        Err(_) => Err(RelayError::PostgresTimeout),
    }
}
