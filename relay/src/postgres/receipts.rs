//! Receipts, and the losses that they prove.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
    time::{Duration, SystemTime},
};

use oncebox_connect::postgres::Parameter;
use tokio::time::Instant;
use tokio_postgres::Row;

use super::{Store, session::Session};
use crate::{
    delivery::{Birth, any_expression, subjects::patterns},
    error::StoreError,
};

/// A lane and a stream get a receipt so often at most; their cursor has the newest anyway.
const APPEND_EVERY: Duration = Duration::from_secs(1);
/// Receipts of a lane that are read at a time.
pub(crate) const PAGE: i64 = 256;
/// Of a lane those since the last check that are looked at, at most: those of hours without one,
/// since all that are older than ten minutes but one a minute are forgotten.
const RECENT_MAX: i64 = 1024;

/// A cursor, with the highest sequence that a stream had acknowledged by then:
/// `delivery/receipt.rs`.
#[derive(Clone, Debug)]
pub struct Receipt {
    /// The lane of the cursor.
    pub lane: i16,
    /// The stream.
    pub stream: Arc<str>,
    /// The number of the cursor.
    pub number: i64,
    /// The highest sequence acknowledged.
    pub sequence: u64,
    /// The id of the message there.
    pub message_id: Option<String>,
    /// Of the cursor.
    pub floor: i64,
    /// Of the cursor.
    pub high: i64,
    /// Of the cursor; `None`: the snapshot of the claimed one.
    pub snap: Option<String>,
}

/// A mark that a stream is to prove: the highest sequence that it acknowledged to a lane, or a
/// receipt.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub(crate) lane: i16,
    /// The number of the cursor.
    pub(crate) number: i64,
    pub(crate) sequence: u64,
    pub(crate) message_id: Option<String>,
    /// The mark has not moved since the stream was last found to hold its message.
    pub(crate) is_checked: bool,
}

/// A stream that has acknowledged messages.
#[derive(Clone, Debug)]
pub(crate) struct KnownStream {
    pub(crate) name: String,
    /// When it was created, if a relay has looked before.
    pub(crate) created: Option<SystemTime>,
    pub(crate) checked_at: Option<SystemTime>,
    /// Its subjects, when a relay looked last.
    pub(crate) subjects: Vec<String>,
    /// When its marks were read, by the database's clock.
    pub(crate) read_at: SystemTime,
    /// One for each lane.
    pub(crate) marks: Vec<Mark>,
    /// Receipts since it was checked, the newest of each lane at most.
    pub(crate) recent: Vec<Mark>,
}

/// A stream as a relay has seen it.
#[derive(Clone, Debug)]
pub(crate) struct SeenStream<'a> {
    pub(crate) name: &'a str,
    pub(crate) created: SystemTime,
    /// A regular expression of its subjects.
    pub(crate) subjects: String,
    /// The stream holds all that it acknowledged before this time.
    pub(crate) checked_at: SystemTime,
}

/// A stream's loss in one lane.
#[derive(Clone, Debug)]
pub(crate) struct Lost<'a> {
    pub(crate) lane: i16,
    pub(crate) stream: &'a str,
    /// The number of the cursor by which it was found.
    pub(crate) seen: i64,
    pub(crate) kind: &'static str,
    /// The highest sequence that was acknowledged.
    pub(crate) sequence: u64,
    /// The number of the newest receipt that the stream can prove.
    pub(crate) proven: Option<i64>,
}

impl Session {
    /// Appends receipts, before the cursors are moved.
    pub(super) async fn append_receipts(&self, due: &[&Receipt]) -> Result<(), StoreError> {
        if due.is_empty() {
            return Ok(());
        }
        let lanes: Vec<i16> = due.iter().map(|r| r.lane).collect();
        let streams: Vec<&str> = due.iter().map(|r| &*r.stream).collect();
        let numbers: Vec<i64> = due.iter().map(|r| r.number).collect();
        let sequences: Vec<i64> = due.iter().map(|r| r.sequence.cast_signed()).collect();
        let ids: Vec<Option<&str>> = due.iter().map(|r| r.message_id.as_deref()).collect();
        let floors: Vec<i64> = due.iter().map(|r| r.floor).collect();
        let highs: Vec<i64> = due.iter().map(|r| r.high).collect();
        let snaps: Vec<Option<&str>> = due.iter().map(|r| r.snap.as_deref()).collect();
        let parameters: [&dyn Parameter; 8] =
            [&lanes, &streams, &numbers, &sequences, &ids, &floors, &highs, &snaps];
        self.execute("append receipts", &self.store.sql.append_receipts, &parameters).await.map(drop)
    }
}

impl Store {
    /// Of these receipts those that are to be appended: a lane and a stream have had none for a
    /// while.
    pub(super) fn due<'a>(&self, receipts: &'a [Receipt]) -> Vec<&'a Receipt> {
        let now = Instant::now();
        let mut appended = self.appended.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = |receipt: &&Receipt| {
            let place = (receipt.lane, Arc::clone(&receipt.stream));
            // A receipt which says that a stream had nothing of the lane is needed in any case.
            receipt.message_id.is_none()
                || appended.get(&place).is_none_or(|last| now.duration_since(*last) >= APPEND_EVERY)
        };
        let due: Vec<&Receipt> = receipts.iter().filter(is_due).collect();
        for receipt in &due {
            appended.insert((receipt.lane, Arc::clone(&receipt.stream)), now);
        }
        due
    }

    /// The streams that have acknowledged messages, with the highest sequence of each lane, and the
    /// receipts since each was last checked.
    pub(crate) async fn acknowledged(self: &Arc<Self>) -> Result<Vec<KnownStream>, StoreError> {
        let session = self.begin().await?;
        let rows = session.query("read what streams acknowledged", &self.sql.acknowledged, &[]).await?;
        let mut streams: Vec<KnownStream> = Vec::new();
        for row in &rows {
            let name: &str = row.get("stream");
            if streams.last().is_none_or(|last| last.name != name) {
                streams.push(KnownStream {
                    name: name.to_owned(),
                    created: row.get("created"),
                    checked_at: row.get("checked_at"),
                    subjects: row.get::<_, Option<&str>>("subjects").map_or_else(Vec::new, patterns),
                    read_at: row.get("read_at"),
                    marks: Vec::new(),
                    recent: Vec::new(),
                });
            }
            let mark = Mark { is_checked: row.get("is_checked"), ..mark(row) };
            streams.last_mut().expect("one was pushed").marks.push(mark);
        }
        let names: Vec<&str> = streams.iter().map(|stream| stream.name.as_str()).collect();
        let checked: Vec<Option<SystemTime>> = streams.iter().map(|stream| stream.checked_at).collect();
        let parameters: [&dyn Parameter; 3] = [&names, &checked, &RECENT_MAX];
        let rows =
            session.query_and_commit("read recent receipts", &self.sql.recent_receipts, &parameters).await?;
        for row in &rows {
            let name: &str = row.get("stream");
            if let Some(stream) = streams.iter_mut().find(|stream| stream.name == name) {
                stream.recent.push(mark(row));
            }
        }
        Ok(streams)
    }

    /// A page of a lane's receipts with lower numbers, the newest first.
    pub(crate) async fn older_receipts(
        self: &Arc<Self>,
        lane: i16,
        stream: &str,
        below: i64,
    ) -> Result<Vec<Mark>, StoreError> {
        let parameters: [&dyn Parameter; 4] = [&lane, &stream, &below, &PAGE];
        let rows = self.ask("read older receipts", &self.sql.older_receipts, &parameters).await?;
        Ok(rows.iter().map(mark).collect())
    }

    /// Notes how streams were when they were found to have all that they acknowledged.
    pub(crate) async fn saw_streams(self: &Arc<Self>, seen: &[SeenStream<'_>]) -> Result<(), StoreError> {
        if seen.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = seen.iter().map(|stream| stream.name).collect();
        let created: Vec<SystemTime> = seen.iter().map(|stream| stream.created).collect();
        let subjects: Vec<&str> = seen.iter().map(|stream| stream.subjects.as_str()).collect();
        let checked: Vec<SystemTime> = seen.iter().map(|stream| stream.checked_at).collect();
        let parameters: [&dyn Parameter; 4] = [&names, &created, &subjects, &checked];
        self.ask("note streams", &self.sql.saw_streams, &parameters).await.map(drop)
    }

    /// Notes streams that have acknowledged something for the first time, unless they are known.
    pub(crate) async fn note_streams(
        self: &Arc<Self>,
        births: &HashMap<Arc<str>, Birth>,
    ) -> Result<(), StoreError> {
        if births.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = births.keys().map(|name| &**name).collect();
        let created: Vec<SystemTime> = births.values().map(|birth| birth.created).collect();
        let subjects: Vec<String> = births.values().map(|birth| any_expression(&birth.subjects)).collect();
        let parameters: [&dyn Parameter; 3] = [&names, &created, &subjects];
        self.ask("note streams", &self.sql.note_streams, &parameters).await.map(drop)
    }

    /// Notes a loss, and has it sent again when `resends`; false when another relay was faster.
    pub(crate) async fn lost(self: &Arc<Self>, lost: &Lost<'_>, resends: bool) -> Result<bool, StoreError> {
        let session = self.begin().await?;
        let sequence = lost.sequence.cast_signed();
        let parameters: [&dyn Parameter; 6] =
            [&lost.lane, &lost.stream, &lost.seen, &lost.kind, &sequence, &lost.proven];
        let noted = session.query("note a loss", &self.sql.note_loss, &parameters).await?;
        let is_noted = noted.first().is_some_and(|row| row.get(0));
        if is_noted && resends {
            let parameters: [&dyn Parameter; 2] = [&lost.lane, &lost.stream];
            session.query_and_commit("send again what was lost", &self.sql.resend_lost, &parameters).await?;
        } else {
            session.commit().await?;
        }
        Ok(is_noted)
    }

    /// Notes which lanes have been sent again as far as they had been; returns how many.
    pub(crate) async fn end_resends(self: &Arc<Self>) -> Result<usize, StoreError> {
        Ok(self.ask("end what was sent again", &self.sql.end_resends, &[]).await?.len())
    }
}

fn mark(row: &Row) -> Mark {
    Mark {
        lane: row.get("lane"),
        number: row.get("number"),
        sequence: row.get::<_, i64>("sequence").cast_unsigned(),
        message_id: row.get("message_id"),
        is_checked: false,
    }
}
