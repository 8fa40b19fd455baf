//! Retention by hand.

use std::time::Duration;

use super::{Operator, Result, query};

impl Operator {
    /// Empties the segments of the log that were drained longer ago than `retention`, as the relays
    /// do; returns about how many messages went. A dry run only counts them. Messages that are
    /// parked, dead, to be replayed or delayed are not lost by it, since they lie elsewhere too.
    /// The segments of this turn and of the one before stay.
    ///
    /// # Errors
    /// PostgreSQL refused or went away: whole segments are done, and the same call goes on with the
    /// rest.
    pub async fn prune(&mut self, retention: Duration, dry_run: bool) -> Result<u64> {
        if dry_run {
            let sql = self.sql.count_old.clone();
            let transaction = self.begin().await?;
            let rows = query(&transaction, "count messages", &sql, &[&retention.as_secs_f64()]).await?;
            return Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs()));
        }
        let mut messages = 0;
        while let Some(emptied) = self.prune_segment(retention).await? {
            messages += emptied;
        }
        Ok(messages)
    }

    /// One step; about how many messages went, `None` when there is nothing more to do.
    async fn prune_segment(&mut self, retention: Duration) -> Result<Option<u64>> {
        let reason = format!("settled longer ago than {}", humantime::format_duration(retention));
        let seconds = retention.as_secs_f64();
        let rows =
            self.change("prune the log", |sql| &sql.prune_segment, &[&seconds, &reason], false).await?;
        Ok(rows.first().and_then(|row| row.get::<_, Option<i64>>("messages")).map(i64::unsigned_abs))
    }
}
