//! Claims lanes, and reads the messages that are due in them as far as there is room.

use std::{
    collections::{HashMap, HashSet},
    pin::{Pin, pin},
    sync::Arc,
    time::SystemTime,
};

use futures_util::TryStreamExt as _;
use oncebox_connect::postgres::Parameter;
use tokio_postgres::{Row, RowStream};
use tracing::error;

use super::{
    read::{Room, large, with_row_max},
    session::Session,
    store::{AnyTime, Store, message},
};
use crate::{
    config::ReadLimits,
    delivery::{Acknowledged, Message, Parked, Replay, Snapshot, cursor::Cursor},
    error::StoreError,
};

/// A lane that this transaction has locked, and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) lane: i16,
    pub(crate) cursor: Cursor,
    /// The acknowledgements of streams to the lane.
    pub(crate) acknowledged: Acknowledged,
    /// Something that a stream has lost is sent again.
    is_resending: bool,
    /// The lane's transaction ids come from another cluster, and no relay has noted it yet.
    pub(crate) is_foreign: bool,
    /// The snapshot that the lane was read in.
    pub(crate) snapshot: String,
    /// When it was claimed, by the database's clock.
    pub(crate) read_at: SystemTime,
    /// There was more than the pass may hold.
    pub(crate) is_cut: bool,
}

/// Which lanes a claim takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted {
    /// Those that seem to have something due.
    Due,
    /// All, even if nothing is due in them.
    All,
}

impl Claim {
    /// A lane as the specification in `model/` claims it.
    pub(crate) fn of_lane(lane: i16, cursor: Cursor, acknowledged: Acknowledged) -> Self {
        Self {
            lane,
            cursor,
            acknowledged,
            is_resending: false,
            is_foreign: false,
            snapshot: String::new(),
            read_at: SystemTime::UNIX_EPOCH,
            is_cut: false,
        }
    }

    /// Whether the lane holds only rows that producers have committed here, one after another.
    pub(crate) fn is_plain(&self) -> bool {
        let is_draining = self.cursor.target.is_some() || self.cursor.reset_until.is_some();
        !is_draining && !self.is_foreign && !self.is_resending && !self.is_cut
    }

    /// Whether a limit may have cut the rows read of the lane.
    pub(crate) fn is_full<'a>(
        &self,
        rows: impl Iterator<Item = &'a Message> + Clone,
        limits: ReadLimits,
    ) -> bool {
        let bytes: usize = rows.clone().map(|message| message.payload_bytes).sum();
        self.is_cut || rows.count() as i64 >= limits.messages_max || bytes as i64 >= limits.bytes_max
    }
}

/// The rows that were read in lanes.
#[derive(Debug, Default)]
struct Due {
    messages: Vec<Message>,
    /// The statement that reads the rows says in which snapshot it did, lane by lane.
    snapshots: HashMap<i16, String>,
    /// The first id of a lane for which there was no room.
    cut: HashMap<i16, i64>,
    /// The sizes of payloads that are still to be read, by lane and id.
    large: HashMap<(i16, i64), usize>,
    /// The numbers of the cursors that the rows were read with, by lane.
    numbers: HashMap<i16, i64>,
    /// The transaction that has locked the lanes.
    xact: Option<u64>,
}

/// Lanes that a transaction has locked.
pub(crate) struct Lanes {
    claims: Vec<Claim>,
    /// The lanes in which parked messages are due.
    pub(crate) parked_due: Vec<i16>,
    /// The snapshot by which the claim found that these lanes have something due.
    snapshot: Option<Snapshot>,
    /// The pauses of operators, as JSON.
    pub(crate) pauses: Option<String>,
    /// The rows that are due in these lanes, as they arrive.
    rows: Pin<Box<RowStream>>,
}

impl Lanes {
    pub(crate) fn len(&self) -> usize {
        self.claims.len()
    }

    /// The lanes, with the numbers of their cursors.
    pub(crate) fn cursors(&self) -> Vec<(i16, i64)> {
        self.claims.iter().map(|claim| (claim.lane, claim.cursor.number)).collect()
    }
}

/// The view of a claim: every message that was due in this snapshot is in a lane that the claim
/// locked, or in one that another relay had locked.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) snapshot: Snapshot,
    /// The transaction that has locked the lanes.
    pub(crate) xact: u64,
}

impl Store {
    /// Opens a transaction, claims up to `lanes_max` of the lanes that are wanted, but none of
    /// those left out, and reads the messages that are due in them.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        lanes_max: i64,
        left_out: &[i16],
        wanted: Wanted,
        limits: ReadLimits,
        payload_max: usize,
    ) -> Result<(Session, Lanes), StoreError> {
        let session = self.session().await?;
        // First, so that nothing comes between the statements, or overtakes one of them.
        let (reading, turn) = self.log.reading();
        let claim_sql = match wanted {
            Wanted::Due => &reading.claim,
            Wanted::All => &self.sql.claim_all,
        };
        session.prepare(&[claim_sql, &reading.read]).await?;
        let ReadLimits { messages_max, bytes_max, dead_blocks } = limits;
        let with_row_max = with_row_max(payload_max);
        let claimed: [&dyn Parameter; 3] = [&lanes_max, &left_out, &turn];
        let claimed = if matches!(wanted, Wanted::All) { &claimed[..2] } else { &claimed };
        let read: [&dyn Parameter; 5] = [&messages_max, &bytes_max, &dead_blocks, &with_row_max, &turn];
        let claim = async { session.query("claim lanes", claim_sql, claimed).await };
        let read = async { session.rows("read lanes", &reading.read, &read).await };
        // All go out together; the server runs them in order.
        let (begun, claimed, rows) = tokio::join!(session.begin(), claim, read);
        // The first error says why, the others only that the transaction is aborted.
        let (claimed, rows) = begun.and(claimed).and_then(|claimed| Ok((claimed, rows?)))?;
        if let Some(row) = claimed.first() {
            self.log.note(row.get("single_turn"));
        }
        let parked_due = claimed.iter().filter(|row| row.get("parked_due")).map(|row| row.get("lane"));
        // Of all lanes, this claim has not asked in those that others have locked.
        let has_asked = matches!(wanted, Wanted::Due) || claimed.len() as i64 == self.lanes;
        let lanes = Lanes {
            claims: claimed.iter().map(self::claim).collect(),
            parked_due: parked_due.collect(),
            pauses: claimed.first().and_then(|row| row.get("pauses")),
            snapshot: claimed
                .first()
                .filter(|_| has_asked)
                .and_then(|row| Snapshot::parse(row.get("snapshot"))),
            rows: Box::pin(rows),
        };
        Ok((session, lanes))
    }
}

impl Session {
    /// The messages that are due in claimed lanes, as far as there is room, and where these lanes
    /// stand. A lane of which nothing found room, or which another relay has settled before it was
    /// locked, is left out, as if it had not been claimed: its turn is next.
    pub(crate) async fn read(
        &self,
        lanes: Lanes,
        limits: ReadLimits,
        mut room: Room<'_>,
    ) -> Result<(Vec<Claim>, Vec<Message>, Option<Seen>), StoreError> {
        let Lanes { mut claims, snapshot, rows, .. } = lanes;
        let mut due = Due::default();
        self.take(rows, &mut due, &mut room).await?;
        claims.retain(|claim| due.numbers.get(&claim.lane) == Some(&claim.cursor.number));
        due.messages.retain(|message| claims.iter().any(|claim| claim.lane == message.lane));
        for claim in claims.iter_mut().filter(|claim| claim.is_foreign) {
            due.messages.retain(|message| message.lane != claim.lane);
            due.cut.remove(&claim.lane);
            let parameters: [&dyn Parameter; 2] = [&claim.lane, &claim.cursor.number];
            let rows = self.query("reset a lane", &self.store.sql.begin_reset, &parameters).await?;
            claim.cursor.reset_until = rows.first().and_then(|row| row.get(0));
        }
        let resetting: Vec<i16> = claims
            .iter()
            .filter(|claim| claim.cursor.reset_until.is_some())
            .map(|claim| claim.lane)
            .collect();
        if !resetting.is_empty() {
            let ReadLimits { messages_max, bytes_max, dead_blocks } = limits;
            let with_row_max = room.with_row_max();
            let parameters: [&dyn Parameter; 5] =
                [&resetting, &messages_max, &bytes_max, &dead_blocks, &with_row_max];
            let rows = self.rows("read lanes", &self.store.sql.read_reset, &parameters).await?;
            self.take(Box::pin(rows), &mut due, &mut room).await?;
        }
        // Only a prefix of a lane can be settled.
        due.messages.retain(|message| due.cut.get(&message.lane).is_none_or(|first| message.id < *first));
        due.messages.sort_unstable_by_key(|message| (message.lane, message.id));
        let found = due.messages.len();
        due.messages.dedup_by_key(|message| (message.lane, message.id));
        if due.messages.len() < found {
            error!("two segments of the log hold rows with one id: each is sent once");
        }
        for claim in &mut claims {
            claim.is_cut = due.cut.contains_key(&claim.lane);
            claim.snapshot = due.snapshots.remove(&claim.lane).unwrap_or_default();
        }
        claims.retain(|claim| !claim.is_cut || due.messages.iter().any(|message| message.lane == claim.lane));
        self.pass_over(&claims, &mut due.messages).await?;
        self.read_payloads(&mut due.messages, &due.large).await?;
        let seen = snapshot.zip(due.xact).map(|(snapshot, xact)| Seen { snapshot, xact });
        Ok((claims, due.messages, seen))
    }

    /// Takes the rows of a read, as far as there is room.
    async fn take(
        &self,
        mut rows: Pin<Box<RowStream>>,
        due: &mut Due,
        room: &mut Room<'_>,
    ) -> Result<(), StoreError> {
        let outbox = self.store.outbox();
        // One after another: a row that finds no room is gone before the next one comes.
        while let Some(row) = rows.try_next().await.map_err(|source| self.failed("read lanes", source))? {
            let lane: i16 = row.get(0);
            if let Some(snapshot) = row.get::<_, Option<String>>("snapshot") {
                due.snapshots.insert(lane, snapshot);
            }
            if let Ok(Some(number)) = row.try_get("number") {
                due.numbers.insert(lane, number);
                due.xact = row.get::<_, Option<&str>>("xact").and_then(|xact| xact.parse().ok());
            }
            // None in a lane in which nothing is due.
            let Some(id) = row.get::<_, Option<i64>>(1) else { continue };
            if !room.admits(&row) {
                due.cut.entry(lane).and_modify(|first| *first = id.min(*first)).or_insert(id);
                continue;
            }
            due.large.extend(large(&row, room));
            due.messages.push(message(&row, &outbox, None, None));
        }
        Ok(())
    }

    /// In lanes that are sent again, marks the messages not to be sent a second time: other
    /// streams' messages, and parked, dead or discarded ones.
    async fn pass_over(&self, claims: &[Claim], messages: &mut [Message]) -> Result<(), StoreError> {
        let resent: Vec<i16> =
            claims.iter().filter(|claim| claim.is_resending).map(|claim| claim.lane).collect();
        let rows = messages.iter().filter(|message| resent.contains(&message.lane));
        let (lanes, ids): (Vec<i16>, Vec<i64>) = rows.map(|message| (message.lane, message.id)).unzip();
        if lanes.is_empty() {
            return Ok(());
        }
        let passed = self.query("find what is sent again", &self.store.sql.passed, &[&lanes, &ids]).await?;
        let passed: HashSet<(i16, i64)> = passed.iter().map(|row| (row.get(0), row.get(1))).collect();
        for message in messages.iter_mut() {
            message.is_passed = passed.contains(&(message.lane, message.id));
        }
        Ok(())
    }

    /// Reads parked messages that are due in the given lanes, with those that wait for them; the
    /// limits are for all lanes. Also whether there are more.
    pub(crate) async fn read_parked(
        &self,
        lanes: &[i16],
        limits: ReadLimits,
        mut room: Room<'_>,
    ) -> Result<(Vec<Message>, bool), StoreError> {
        let ReadLimits { messages_max, bytes_max, dead_blocks } = limits;
        let with_row_max = room.with_row_max();
        let parameters: [&dyn Parameter; 5] =
            [&lanes, &messages_max, &bytes_max, &dead_blocks, &with_row_max];
        let mut rows = pin!(self.rows("read parked", &self.store.sql.read_parked, &parameters).await?);
        let (mut messages, mut large_payloads, outbox) = (Vec::new(), HashMap::new(), self.store.outbox());
        let (mut found, mut is_cut) = (0, false);
        while let Some(row) = rows.try_next().await.map_err(|source| self.failed("read parked", source))? {
            found += 1;
            // The rows are sorted by lane and id. If there is no room for one row, there is none
            // for those after it.
            is_cut = is_cut || !room.admits(&row);
            if is_cut {
                continue;
            }
            let parked = Parked {
                attempts: row.get("attempts"),
                seconds: row.get("parked_seconds"),
                is_due: row.get("is_due"),
                waits_for: row.get("waits_for"),
            };
            let requested_at: Option<AnyTime> = row.get("requested_at");
            let replay =
                requested_at.map(|AnyTime(requested_at)| Replay { number: row.get("replay"), requested_at });
            large_payloads.extend(large(&row, &room));
            messages.push(message(&row, &outbox, Some(parked), replay));
        }
        self.read_payloads(&mut messages, &large_payloads).await?;
        Ok((messages, is_cut || found >= messages_max))
    }

    /// Whether messages of another ordering key wait in a lane after this id.
    pub(crate) async fn other_keys_wait(
        &self,
        lane: i16,
        after: i64,
        ordering_key: &str,
    ) -> Result<bool, StoreError> {
        let none: Option<Vec<&str>> = None;
        let parameters: [&dyn Parameter; 5] = [&lane, &after, &ordering_key, &none, &None::<i64>];
        let rows = self.query("look for other keys", &self.store.sql.others, &parameters).await?;
        Ok(rows.iter().any(|row| row.get(0)))
    }

    /// Whether messages of other subjects, or of fewer bytes than `smaller_than`, wait in a lane
    /// after this id.
    pub(crate) async fn others_wait(
        &self,
        lane: i16,
        after: i64,
        subjects: &[&str],
        smaller_than: Option<i64>,
    ) -> Result<bool, StoreError> {
        let none: Option<&str> = None;
        let parameters: [&dyn Parameter; 5] = [&lane, &after, &none, &subjects, &smaller_than];
        let rows = self.query("look for others", &self.store.sql.others, &parameters).await?;
        Ok(rows.iter().any(|row| row.get(0)))
    }
}

fn claim(row: &Row) -> Claim {
    Claim {
        lane: row.get("lane"),
        cursor: Cursor {
            number: row.get("number"),
            floor: row.get("floor"),
            high: row.get("high"),
            target: row.get("target"),
            after: row.get("after"),
            reset_until: row.get("reset_until"),
        },
        acknowledged: Acknowledged::parse(row.get("acknowledged")),
        is_resending: row.get("is_resending"),
        is_foreign: row.get("is_foreign"),
        snapshot: String::new(),
        read_at: row.get("read_at"),
        is_cut: false,
    }
}
