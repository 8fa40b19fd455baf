//! The last step of a pass: cursors move over messages that are stored or set aside, and the lanes
//! are free.

use super::{
    acknowledgements::Acknowledgements, bounded, claim::Claimed, plan::Plan, publish::Published,
    trace_file::TraceFile,
};
use crate::{
    config::Tuning,
    delivery::{
        Breaker, Message, Outcome, Settlement,
        breaker::{Front, is_answered},
    },
    error::{RelayError, StoreError},
    postgres::{Claim, Receipt, Seen, Session},
    telemetry::Metrics,
};

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

/// Messages set aside and cursors ready to move, not committed yet.
#[derive(Debug)]
pub struct Settled {
    session: Session,
    settlements: Vec<(i16, Settlement)>,
    receipts: Vec<Receipt>,
    pass: Pass,
    /// All due messages are stored, and nothing was made due.
    pub(super) seen: Option<Seen>,
    /// Lanes of which a limit may have cut the read.
    pub(super) cut_lanes: usize,
    trace: Option<(TraceFile, u64)>,
}

impl Settled {
    pub(super) async fn new(
        published: Published,
        tuning: &Tuning,
        metrics: &Metrics,
        breaker: &Breaker,
        trace_file: Option<TraceFile>,
    ) -> Result<Self, StoreError> {
        let Published { claimed, mut outcomes, .. } = published.in_order();
        let Claimed { session, claims, messages, full, limits, share: _share, seen, pass, .. } = claimed;
        let trace = trace_file.map(|file| (file, pass));
        let is_throttled =
            |outcome: &Outcome| matches!(outcome, Outcome::Failed(_, failure) if failure.is_throttled());
        if outcomes.iter().any(is_throttled) {
            breaker.throttled();
        }
        hold_lanes(breaker, &session, &claims, &messages, &mut outcomes).await?;
        let acknowledgements = Acknowledgements::new(&claims, &messages, &outcomes);
        let mut plan = Plan::new(full, tuning, breaker);
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
        let makes_due = plan.write(&session, limits).await?;
        let is_all = plan.done == messages.len() && !plan.full && plan.parkings.is_empty() && !makes_due;
        if let Some((file, pass)) = &trace {
            let parked = plan.parkings.iter().map(|(message, _)| *message);
            file.settling(*pass, &plan.settlements, &plan.reads, parked);
        }
        let pass = Pass::Settled { messages: plan.done, full: plan.full };
        let (settlements, cut_lanes) = (plan.settlements, plan.cut_lanes);
        Ok(Self { session, settlements, receipts, pass, seen: seen.filter(|_| is_all), cut_lanes, trace })
    }

    /// Moves the cursors and commits, which frees the lanes.
    ///
    /// # Errors
    /// PostgreSQL went away: whether the commit happened is unknown. If not, the same messages are
    /// sent again.
    pub async fn commit(self) -> Result<Pass, RelayError> {
        bounded(self.session.settle_and_commit(&self.settlements, &self.receipts)).await?;
        if let Some((file, pass)) = &self.trace {
            file.settled(*pass);
        }
        Ok(self.pass)
    }
}

/// Keeps the messages for full streams unsettled, in lanes where nothing else could be delivered.
async fn hold_lanes(
    breaker: &Breaker,
    session: &Session,
    claims: &[Claim],
    messages: &[Message],
    outcomes: &mut [Outcome],
) -> Result<(), StoreError> {
    if breaker.holds_none() && !outcomes.iter().any(Front::is_refused) {
        return Ok(());
    }
    for claim in claims {
        let lane = claim.lane;
        let of_lane = |index: &usize| messages[*index].lane == lane;
        let (parked, rows): (Vec<usize>, Vec<usize>) =
            (0..messages.len()).filter(of_lane).partition(|index| messages[*index].parked.is_some());
        if parked.iter().any(|index| matches!(outcomes[*index], Outcome::Stored { .. })) {
            breaker.has_room(lane);
        }
        let front = Front::of(rows.iter().map(|index| (&messages[*index], &outcomes[*index])));
        let Some(front) = front.filter(|_| claim.cursor.reset_until.is_none()) else {
            if rows.iter().any(|index| is_answered(&outcomes[*index])) {
                breaker.close_lane(lane);
            }
            continue;
        };
        let last = rows.last().map_or(0, |index| messages[*index].id).max(claim.cursor.high);
        let others = async |smaller| session.others_wait(lane, last, &front.subjects, smaller).await;
        if front.has_many_subjects() || others(None).await? {
            breaker.close_lane(lane);
            continue;
        }
        let smaller_than = breaker.smaller_than(lane, &front);
        if let Some(bytes) = smaller_than
            && others(smaller_than).await?
        {
            breaker.park_larger(lane, bytes);
            continue;
        }
        // Each time that a lane is held anew its first refused message is parked, and says why.
        let is_new = breaker.hold(lane, &front);
        for index in &rows[front.before + usize::from(is_new)..] {
            outcomes[*index] = Outcome::Unknown;
        }
    }
    Ok(())
}
