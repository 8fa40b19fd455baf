//! Retention by hand.

use std::time::Duration;

use super::{Operator, execute, failed, query};
use crate::{
    error::RelayError,
    postgres::{
        parameter::{Parameter, typed},
        retention::{BATCH, BATCH_BYTES, Milestones, Place, Pruned},
    },
};

const MILESTONES: &str = include_str!("../postgres/sql/milestones.sql");
const PRUNE: &str = include_str!("../postgres/sql/prune.sql");

impl Operator {
    /// Deletes messages that were settled longer ago than `retention`, as the relays do; returns
    /// how many. A dry run only counts them. What is parked, dead or to be replayed stays.
    ///
    /// A relay writes down what is settled 64 times per retention time of its own: what this
    /// deletes is exact to that.
    ///
    /// # Errors
    /// PostgreSQL refused or went away: whole batches are done, and the same call goes on with the
    /// rest.
    pub async fn prune(&mut self, retention: Duration, dry_run: bool) -> Result<u64, RelayError> {
        let rows =
            self.query("find milestones", &self.schema.sql(MILESTONES), &[&retention.as_secs_f64()]).await?;
        let milestones = Milestones::new(&rows);
        let (mut messages, mut place) = (0, Some(Place::default()));
        while let Some(from) = place {
            let pruned = self.prune_batch(&milestones, from, retention, dry_run).await?;
            messages += pruned.messages;
            place = pruned.next;
        }
        Ok(messages)
    }

    async fn prune_batch(
        &mut self,
        milestones: &Milestones,
        place: Place,
        retention: Duration,
        dry_run: bool,
    ) -> Result<Pruned, RelayError> {
        let (stamp, sql, prune) = (self.stamp.clone(), self.sql.clone(), self.schema.sql(PRUNE));
        let transaction = self.begin().await?;
        if !dry_run {
            query(&transaction, "lock the maintenance", &sql.lock_maintenance, &[]).await?;
        }
        let parameters: [&dyn Parameter; 7] = [
            &milestones.lanes,
            &milestones.numbers,
            &place.after,
            &place.span,
            &BATCH,
            &BATCH_BYTES,
            &dry_run,
        ];
        let row = transaction.query_typed_one(&prune, &typed(&parameters)).await;
        let row = row.map_err(failed("prune messages"))?;
        let messages: i64 = row.get("pruned");
        if messages > 0 && !dry_run {
            let reason = format!("settled longer ago than {}", humantime::format_duration(retention));
            let parameters: [&dyn Parameter; 4] = [&stamp.operator, &stamp.note, &messages, &reason];
            execute(&transaction, "record it", &sql.record_prune, &parameters).await?;
        }
        transaction.commit().await.map_err(failed("commit"))?;
        Ok(Pruned::new(&row, place))
    }
}
