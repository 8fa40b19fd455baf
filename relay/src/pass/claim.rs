//! The first step of a pass: it claims lanes, and reads the messages that are due in them.

use std::sync::Arc;

use tokio::time::Instant;
use tracing::warn;

use super::{bounds::Bounds, budget::Share};
use crate::{
    clock::Clock,
    config::ReadLimits,
    delivery::{Message, Pauses},
    error::StoreError,
    postgres::{Claim, Seen, Session, Store, Wanted, read::Room},
};

/// Lanes that an open transaction has locked, and the due messages in them.
#[derive(Debug)]
pub struct Claimed {
    pub(super) session: Session,
    pub(super) claims: Vec<Claim>,
    pub(super) messages: Vec<Message>,
    pub(super) clock: Clock,
    /// A limit, or a lack of room, has cut the claim: more may be due.
    pub(super) full: bool,
    /// The limits that the lanes were read with.
    pub(super) limits: ReadLimits,
    /// Room for the payloads, given back with them.
    pub(super) share: Share,
    /// All due messages are here, except for lanes that others had locked.
    pub(super) seen: Option<Seen>,
    /// The pauses of operators.
    pub(super) pauses: Pauses,
    /// The pass has locked all lanes, and only new messages are due in them.
    pub(super) has_all: bool,
    /// The number of the pass in the trace file, if there is one.
    pub(super) pass: u64,
}

impl Claimed {
    /// `None` when nothing is due in the lanes that are wanted: then no transaction is open.
    pub(super) async fn new(
        store: &Arc<Store>,
        wanted: Wanted,
        lanes_max: i64,
        bounds: &mut Bounds,
    ) -> Result<Option<Self>, StoreError> {
        let (left_out, limits) = bounds.lanes(lanes_max);
        let (payload_max, mut share) = (bounds.payload_max, bounds.budget.share());
        let here = Instant::now();
        let (session, mut lanes) = store.claim(lanes_max, &left_out, wanted, limits, payload_max).await?;
        let claimed = lanes.len();
        if claimed == 0 {
            session.rollback().await?;
            return Ok(None);
        }
        let mut parked_due = std::mem::take(&mut lanes.parked_due);
        let pauses = Pauses::parse(lanes.pauses.as_deref());
        let lanes_full = claimed as i64 >= lanes_max && (claimed as i64) < store.lanes;
        let room = Room { payload_max, admit: &mut |bytes| share.admit(bytes) };
        let (claims, mut messages, seen) = session.read(lanes, limits, room).await?;
        // In a lane that is left out nothing is sent: its cursor could not note the
        // acknowledgement, and no relay would notice if the stream lost it.
        parked_due.retain(|lane| claims.iter().any(|claim| claim.lane == *lane));
        let has_all = matches!(wanted, Wanted::All)
            && claims.len() as i64 == store.lanes
            && parked_due.is_empty()
            && claims.iter().all(Claim::is_plain);
        bounds.hot_keys.give_way(&session, &claims, &mut messages, limits).await?;
        // Messages of the log that follow a parked one of their ordering key were read as blocked.
        let mut parked_full = false;
        if !parked_due.is_empty()
            && let Some(parked_limits) = bounds.parked(messages.len() as i64 >= limits.messages_max)
        {
            share.begin();
            let room = Room { payload_max, admit: &mut |bytes| share.admit(bytes) };
            let (parked, is_full) = session.read_parked(&parked_due, parked_limits, room).await?;
            parked_full = is_full;
            messages.extend(parked);
        }
        session.mark_paused(&pauses, &mut messages).await?;
        share.lend(messages.iter_mut().map(|message| &mut message.payload));
        for claim in claims.iter().filter(|claim| claim.is_foreign) {
            warn!(
                lane = claim.lane,
                reset_until = claim.cursor.reset_until,
                "this database was restored from another cluster: what was due there is sent first"
            );
        }
        let clock = Clock { here, database: claims.iter().map(|claim| claim.read_at).min() };
        let is_cut = claims.len() < claimed || claims.iter().any(|claim| claim.is_cut);
        // Without room for anything it is better to wait for the other workers a little.
        let full = lanes_full || parked_full || is_cut && !messages.is_empty();
        let seen = seen.filter(|_| !is_cut && left_out.is_empty());
        Ok(Some(Self {
            session,
            claims,
            messages,
            clock,
            full,
            limits,
            share,
            seen,
            pauses,
            has_all,
            pass: 0,
        }))
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
