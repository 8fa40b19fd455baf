//! Settles messages that were published or set aside, in the claiming transaction.

use oncebox_connect::postgres::Parameter;

use super::{receipts::Receipt, session::Session};
use crate::{
    delivery::{Cause, Message, Settlement},
    error::StoreError,
};

/// How a message is set aside.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parking {
    pub(crate) attempts: i32,
    /// `None` for a message that waits for others of its ordering key, or is dead.
    pub(crate) delay_seconds: Option<f64>,
    pub(crate) dead: bool,
    pub(crate) error: String,
    pub(crate) cause: Cause,
    /// The obstacle that has refused it with others.
    pub(crate) waits_for: Option<String>,
}

/// A parked message that a stream has stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unparked<'a> {
    pub(crate) message: &'a Message,
    pub(crate) stream: &'a str,
    pub(crate) sequence: u64,
}

impl Session {
    /// Sets messages aside. PostgreSQL copies their contents from the log.
    pub(crate) async fn park(&self, parkings: &[(&Message, Parking)]) -> Result<(), StoreError> {
        let lanes: Vec<i16> = parkings.iter().map(|(m, _)| m.lane).collect();
        let ids: Vec<i64> = parkings.iter().map(|(m, _)| m.id).collect();
        let attempts: Vec<i32> = parkings.iter().map(|(_, p)| p.attempts).collect();
        let delays: Vec<Option<f64>> = parkings.iter().map(|(_, p)| p.delay_seconds).collect();
        let dead: Vec<bool> = parkings.iter().map(|(_, p)| p.dead).collect();
        let errors: Vec<&str> = parkings.iter().map(|(_, p)| p.error.as_str()).collect();
        let causes: Vec<&str> = parkings.iter().map(|(_, p)| p.cause.name()).collect();
        let waits_for: Vec<Option<&str>> = parkings.iter().map(|(_, p)| p.waits_for.as_deref()).collect();
        let parameters: [&dyn Parameter; 8] =
            [&lanes, &ids, &attempts, &delays, &dead, &errors, &causes, &waits_for];
        self.execute("park messages", &self.store.sql.park, &parameters).await.map(drop)
    }

    /// Forgets parked messages that a stream has stored, and keeps their receipts.
    pub(crate) async fn unpark(&self, messages: &[Unparked<'_>]) -> Result<(), StoreError> {
        let lanes: Vec<i16> = messages.iter().map(|m| m.message.lane).collect();
        let ids: Vec<i64> = messages.iter().map(|m| m.message.id).collect();
        let streams: Vec<&str> = messages.iter().map(|m| m.stream).collect();
        let sequences: Vec<i64> = messages.iter().map(|m| m.sequence.cast_signed()).collect();
        let parameters: [&dyn Parameter; 4] = [&lanes, &ids, &streams, &sequences];
        self.execute("unpark messages", &self.store.sql.unpark, &parameters).await.map(drop)
    }

    /// Makes the first parked message of each of these ordering keys due, when nothing before it is
    /// left.
    pub(crate) async fn release(&self, keys: &[(i16, &str)], dead_blocks: bool) -> Result<(), StoreError> {
        let (lanes, ordering_keys): (Vec<i16>, Vec<&str>) = keys.iter().copied().unzip();
        self.execute("release messages", &self.store.sql.release, &[&lanes, &ordering_keys, &dead_blocks])
            .await
            .map(drop)
    }

    /// Has some messages tried that wait with others: the given number of each group.
    pub(crate) async fn release_waiting(&self, groups: &[(i16, &str, i64)]) -> Result<u64, StoreError> {
        let lanes: Vec<i16> = groups.iter().map(|(lane, _, _)| *lane).collect();
        let waits_for: Vec<&str> = groups.iter().map(|(_, waits_for, _)| *waits_for).collect();
        let messages: Vec<i64> = groups.iter().map(|(_, _, messages)| *messages).collect();
        self.execute("release messages", &self.store.sql.release_waiting, &[&lanes, &waits_for, &messages])
            .await
    }

    /// Appends receipts, moves the cursors of claimed lanes and commits, in one round trip.
    pub(crate) async fn settle_and_commit(
        self,
        settlements: &[(i16, Settlement)],
        receipts: &[Receipt],
    ) -> Result<(), StoreError> {
        let receipts = self.store.due(receipts);
        // First, so that nothing overtakes a statement that is still to be prepared.
        if !receipts.is_empty() {
            self.prepare(&[&self.store.sql.append_receipts]).await?;
        }
        if !settlements.is_empty() {
            self.prepare(&[&self.store.sql.settle]).await?;
        }
        let (appended, settled) = (self.append_receipts(&receipts), self.settle(settlements));
        let (appended, settled, committed) = tokio::join!(appended, settled, self.send_commit());
        // The first error says why, the others only that the transaction is aborted.
        appended.and(settled).and(committed)?;
        self.give_back();
        Ok(())
    }

    async fn settle(&self, settlements: &[(i16, Settlement)]) -> Result<(), StoreError> {
        if settlements.is_empty() {
            return Ok(());
        }
        let lanes: Vec<i16> = settlements.iter().map(|(lane, _)| *lane).collect();
        let floors: Vec<i64> = settlements.iter().map(|(_, s)| s.floor).collect();
        let highs: Vec<i64> = settlements.iter().map(|(_, s)| s.high).collect();
        let numbers: Vec<i64> = settlements.iter().map(|(_, s)| s.number).collect();
        let snaps: Vec<Option<&str>> = settlements.iter().map(|(_, s)| s.snap.as_deref()).collect();
        let targets: Vec<Option<&str>> = settlements.iter().map(|(_, s)| s.target.as_deref()).collect();
        let afters: Vec<Option<i64>> = settlements.iter().map(|(_, s)| s.after).collect();
        let resets: Vec<Option<i64>> = settlements.iter().map(|(_, s)| s.reset_until).collect();
        let acknowledged: Vec<Option<&str>> =
            settlements.iter().map(|(_, s)| s.acknowledged.as_deref()).collect();
        let parameters: [&dyn Parameter; 9] =
            [&lanes, &numbers, &floors, &highs, &snaps, &targets, &afters, &resets, &acknowledged];
        let moved = self.execute("settle lanes", &self.store.sql.settle, &parameters).await?;
        assert_eq!(moved, settlements.len() as u64, "claimed lanes are locked, so each is there to settle");
        Ok(())
    }
}
