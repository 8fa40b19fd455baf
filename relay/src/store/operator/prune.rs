//! Retention by hand.

use std::time::Duration;

use super::{Operator, execute, failed, query};
use crate::{
    relay::RelayError,
    store::{
        maintenance::{BATCH, BATCH_BYTES, Progress},
        parameter::{Parameter, typed},
    },
};

const PRUNE: &str = include_str!("../sql/prune.sql");

impl Operator {
    /// Deletes messages that were settled longer ago than `retention`, as the relays do; returns how many. A dry run
    /// only counts them. What is parked, dead or to be replayed stays.
    ///
    /// A relay writes down what is settled 64 times per retention time of its own: what this deletes is exact to that.
    ///
    /// # Errors
    /// PostgreSQL refused or went away: whole batches are done, and the same call goes on with the rest.
    pub async fn prune(&mut self, retention: Duration, dry_run: bool) -> Result<u64, RelayError> {
        let mut pruned = 0;
        for lane in self.lanes().await? {
            let mut after = Some(0);
            while let Some(from) = after {
                let progress = self.prune_batch(lane, from, retention, dry_run).await?;
                pruned += progress.messages;
                after = progress.next;
            }
        }
        Ok(pruned)
    }

    async fn prune_batch(
        &mut self,
        lane: i16,
        after: i64,
        retention: Duration,
        dry_run: bool,
    ) -> Result<Progress, RelayError> {
        let (stamp, sql, prune) = (self.stamp.clone(), self.sql.clone(), self.schema.sql(PRUNE));
        let transaction = self.begin().await?;
        if !dry_run {
            query(&transaction, "lock the maintenance", &sql.lock_maintenance, &[]).await?;
        }
        let (seconds, no_milestone) = (retention.as_secs_f64(), 0_i64);
        let parameters: [&dyn Parameter; 7] =
            [&lane, &after, &seconds, &BATCH, &BATCH_BYTES, &no_milestone, &dry_run];
        let row = transaction.query_typed_one(&prune, &typed(&parameters)).await;
        let row = row.map_err(failed("prune messages"))?;
        let pruned: i64 = row.get("pruned");
        if pruned > 0 && !dry_run {
            let reason = format!("settled longer ago than {}", humantime::format_duration(retention));
            let parameters: [&dyn Parameter; 5] = [&stamp.operator, &stamp.note, &lane, &pruned, &reason];
            execute(&transaction, "record it", &sql.record_prune, &parameters).await?;
        }
        transaction.commit().await.map_err(failed("commit"))?;
        Ok(Progress::new(pruned, row.get("is_full"), row.get("last_id"), None))
    }
}
