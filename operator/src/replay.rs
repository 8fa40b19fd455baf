//! Replays: settled messages are sent again by a relay, under a broker id of their own.

use std::time::{Duration, SystemTime};

use oncebox_connect::{
    error::RelayError,
    postgres::{Parameter, typed},
};
use oncebox_relay::facts;
use tokio_postgres::Row;

use super::{BATCH, Operator, execute, failed, query, selection::ReplaySelection, shown::RowSet};

/// Ages come as seconds in floating point.
const MARGIN_SECONDS: f64 = 0.001;

/// The result of [`Operator::replay`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replayed {
    /// Messages that were asked for again.
    pub messages: u64,
    /// Messages among those looked at that had been asked for under the same name before.
    pub before: u64,
}

impl Operator {
    /// Asks the relays to send settled messages again, `limit` at most, a batch per transaction;
    /// returns how many. It takes only messages that were settled when the call began, and none
    /// that is parked or discarded. `only` leaves out all messages but those of a set that was
    /// shown.
    ///
    /// `request` is a name, 1 to 255 bytes. Messages already asked for under the same name are left
    /// out, so you can repeat a call that was cut off.
    ///
    /// # Errors
    /// PostgreSQL refused or went away: whole batches are asked for, and the same call goes on with
    /// the rest.
    pub async fn replay(
        &mut self,
        selection: &ReplaySelection,
        request: &str,
        limit: Option<u64>,
        only: Option<&RowSet>,
    ) -> Result<Replayed, RelayError> {
        let limit = limit.unwrap_or(u64::MAX);
        let mut done = Replayed::default();
        for (lane, low, high) in self.ranges(selection).await? {
            let mut after = low;
            while done.messages < limit && after < high {
                let row = self.look_at_settled(lane, after, high, selection, request).await?;
                let mut ids: Vec<i64> = row.get("ids");
                ids.retain(|id| only.is_none_or(|only| only.has(id)));
                ids.truncate(usize::try_from(limit - done.messages).unwrap_or(usize::MAX));
                done.before += row.get::<_, i64>("asked_for").unsigned_abs();
                done.messages += self.replay_in_batches(lane, &ids, request).await?;
                match row.get::<_, Option<i64>>("last_id") {
                    Some(last) if row.get("is_full") => after = last,
                    _ => break,
                }
            }
        }
        Ok(done)
    }

    /// Adds the settled messages that match to a set, up to `limit`, in the order in which
    /// [`Operator::replay`] takes them; returns how many of those looked at had been asked for
    /// under this name before.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn find_settled(
        &self,
        selection: &ReplaySelection,
        request: &str,
        limit: Option<u64>,
        found: &mut RowSet,
    ) -> Result<u64, RelayError> {
        let (limit, mut before) = (limit.unwrap_or(u64::MAX), 0);
        for (lane, low, high) in self.ranges(selection).await? {
            let mut after = low;
            while found.count() < limit && after < high {
                let row = self.look_at_settled(lane, after, high, selection, request).await?;
                let (ids, times): (Vec<i64>, Vec<SystemTime>) = (row.get("ids"), row.get("times"));
                for (id, created_at) in ids.iter().zip(times) {
                    if found.count() < limit {
                        found.add(id, created_at);
                    }
                }
                before += row.get::<_, i64>("asked_for").unsigned_abs();
                match row.get::<_, Option<i64>>("last_id") {
                    Some(last) if row.get("is_full") => after = last,
                    _ => break,
                }
            }
        }
        if found.count() == limit {
            found.forget_late();
        }
        Ok(before)
    }

    /// A time until which all that was enqueued is settled or set aside: `now`, or before the
    /// oldest message that waits, and before each open transaction that has enqueued, as far as
    /// this role sees when it began.
    pub(crate) async fn settled_until(&mut self, now: SystemTime) -> Result<SystemTime, RelayError> {
        let (sql, schema, relays) = (self.sql.clone(), self.schema.clone(), self.relay_name.clone());
        let transaction = self.client.transaction().await.map_err(failed("begin"))?;
        transaction.batch_execute(&sql.status_settings).await.map_err(failed("begin"))?;
        // Transactions first: one that commits meanwhile is among the messages that wait then.
        let open = &sql.status_enqueuing;
        let open = query(&transaction, "find open transactions", open, &[&1_i64, &relays]).await?;
        let log = query(&transaction, "find the live segments", &sql.log, &[]).await?;
        let log = log.first().map_or("log", |row| row.get(0));
        let lag = schema.sql(&facts::sql::LAG.replace("{log}", log));
        let lag = query(&transaction, "read the lag", &lag, &[]).await?;
        let begun = open.iter().map(|row| row.get::<_, f64>("transaction_seconds"));
        let ages = begun.chain(lag.iter().map(|row| row.get("lag_seconds")));
        let oldest = ages.fold(0.0, f64::max);
        let back = if oldest > 0.0 { oldest + MARGIN_SECONDS } else { 0.0 };
        // Somebody may have written any time into a row.
        let back = Duration::try_from_secs_f64(back).unwrap_or(Duration::MAX);
        Ok(now.checked_sub(back).unwrap_or(SystemTime::UNIX_EPOCH))
    }

    /// The lanes to look at, each with the id to look after and the one to look up to.
    async fn ranges(&self, selection: &ReplaySelection) -> Result<Vec<(i16, i64, i64)>, RelayError> {
        let low = selection.from_id.unwrap_or(0).saturating_sub(1);
        let to = selection.to_id.unwrap_or(i64::MAX);
        let rows = self.query("read the lanes", &self.sql.stands, &[]).await?;
        let ranges = rows.iter().map(|row| (row.get("lane"), low, row.get::<_, i64>("high").min(to)));
        let Some(key) = &selection.key else { return Ok(ranges.collect()) };
        let Some((lane, id)) = self.find_key(key, false).await? else { return Ok(Vec::new()) };
        let mine = ranges.filter(|(other, low, high)| *other == lane && *low < id && id <= *high);
        Ok(mine.map(|(lane, ..)| (lane, id - 1, id)).collect())
    }

    async fn look_at_settled(
        &self,
        lane: i16,
        after: i64,
        high: i64,
        selection: &ReplaySelection,
        request: &str,
    ) -> Result<Row, RelayError> {
        let ReplaySelection { key, since, until, .. } = selection;
        let subject = selection.subject.as_ref().map(|pattern| pattern.expression());
        let parameters: [&dyn Parameter; 9] =
            [&lane, &after, &high, &BATCH, key, &subject, since, until, &request];
        let row = self.client.query_typed_one(&self.sql.settled, &typed(&parameters)).await;
        row.map_err(failed("look at settled messages"))
    }

    async fn replay_in_batches(&mut self, lane: i16, ids: &[i64], request: &str) -> Result<u64, RelayError> {
        let mut done = 0;
        for some in ids.chunks(self.pace.batch()) {
            let asked = self.request_replay(lane, some, request).await?;
            self.pace.did(asked).await;
            done += asked;
        }
        Ok(done)
    }

    /// One batch. Under the locks the statement looks again which messages may be replayed.
    async fn request_replay(&mut self, lane: i16, ids: &[i64], request: &str) -> Result<u64, RelayError> {
        let (stamp, sql, schema) = (self.stamp.clone(), self.sql.clone(), self.schema.clone());
        let transaction = self.begin().await?;
        let parameters: [&dyn Parameter; 5] = [&lane, &ids, &stamp.operator, &stamp.note, &request];
        let done = execute(&transaction, "request replays", &sql.replay, &parameters).await?;
        query(&transaction, "wake the relays", &sql.wake, &[&schema.as_str()]).await?;
        transaction.commit().await.map_err(failed("commit"))?;
        Ok(done)
    }
}
