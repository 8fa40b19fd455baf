//! Retention by hand.

use std::time::Duration;

use oncebox_connect::{error::RelayError, postgres::Parameter};
use oncebox_relay::facts::{self, Emptied};

use super::{Operator, execute, failed, query};

impl Operator {
    /// Empties the segments of the log that were drained longer ago than `retention`, as the relays
    /// do; returns about how many messages went. A dry run only counts them. Messages that are
    /// parked, dead, to be replayed or delayed stay, and so do the segments of this turn and of the
    /// one before.
    ///
    /// # Errors
    /// PostgreSQL refused or went away: whole segments are done, and the same call goes on with the
    /// rest.
    pub async fn prune(&mut self, retention: Duration, dry_run: bool) -> Result<u64, RelayError> {
        if dry_run {
            let sql = self.sql.count_old.clone();
            let transaction = self.begin().await?;
            let rows = query(&transaction, "count messages", &sql, &[&retention.as_secs_f64()]).await?;
            return Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()));
        }
        let mut messages = 0;
        while let Some(emptied) = self.empty_segment(retention).await? {
            messages += emptied.messages;
        }
        Ok(messages + self.delete_kept(retention).await?)
    }

    /// Deletes what was kept of segments that were emptied, if nobody needs it any more.
    async fn delete_kept(&mut self, retention: Duration) -> Result<u64, RelayError> {
        let sql = self.sql.clone();
        let mut messages = 0;
        loop {
            let transaction = self.begin().await?;
            query(&transaction, "lock the maintenance", &sql.lock_maintenance, &[]).await?;
            let parameters: [&dyn Parameter; 1] = [&retention.as_secs_f64()];
            let rows = query(&transaction, "delete kept messages", &sql.delete_kept, &parameters).await?;
            transaction.commit().await.map_err(failed("commit"))?;
            match rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()) {
                0 => return Ok(messages),
                deleted => messages += deleted,
            }
        }
    }

    async fn empty_segment(&mut self, retention: Duration) -> Result<Option<Emptied>, RelayError> {
        let (stamp, sql, schema) = (self.stamp.clone(), self.sql.clone(), self.schema.clone());
        let transaction = self.begin().await?;
        query(&transaction, "lock the maintenance", &sql.lock_maintenance, &[]).await?;
        let emptied = facts::empty_segment(&transaction, &schema, retention).await;
        let emptied = emptied.map_err(failed("empty a segment"))?;
        let messages = emptied.map_or(0, |emptied| i64::try_from(emptied.messages).unwrap_or(i64::MAX));
        if messages > 0 {
            let reason = format!("settled longer ago than {}", humantime::format_duration(retention));
            let parameters: [&dyn Parameter; 4] = [&stamp.operator, &stamp.note, &messages, &reason];
            execute(&transaction, "record it", &sql.record_prune, &parameters).await?;
        }
        transaction.commit().await.map_err(failed("commit"))?;
        Ok(emptied)
    }
}
