//! Retention by hand.

use std::time::Duration;

use oncebox_connect::{error::RelayError, postgres::Parameter};
use oncebox_relay::facts::{self, Milestones, Place, Pruned};

use super::{Operator, execute, failed, query};

impl Operator {
    /// Deletes messages that were settled longer ago than `retention`, as the relays do; returns
    /// how many. A dry run only counts them. Messages that are parked, dead or to be replayed stay.
    ///
    /// A relay writes down which messages are settled, 64 times per retention time of its own. This
    /// call's limit of age is exact to that interval.
    ///
    /// # Errors
    /// PostgreSQL refused or went away: whole batches are done, and the same call goes on with the
    /// rest.
    pub async fn prune(&mut self, retention: Duration, dry_run: bool) -> Result<u64, RelayError> {
        let milestones = facts::milestones(&self.client, &self.schema, retention).await;
        let milestones = milestones.map_err(failed("find milestones"))?;
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
        let (stamp, sql, schema) = (self.stamp.clone(), self.sql.clone(), self.schema.clone());
        let transaction = self.begin().await?;
        if !dry_run {
            query(&transaction, "lock the maintenance", &sql.lock_maintenance, &[]).await?;
        }
        let pruned = facts::prune(&transaction, &schema, milestones, place, dry_run).await;
        let pruned = pruned.map_err(failed("prune messages"))?;
        let messages = i64::try_from(pruned.messages).unwrap_or(i64::MAX);
        if messages > 0 && !dry_run {
            let reason = format!("settled longer ago than {}", humantime::format_duration(retention));
            let parameters: [&dyn Parameter; 4] = [&stamp.operator, &stamp.note, &messages, &reason];
            execute(&transaction, "record it", &sql.record_prune, &parameters).await?;
        }
        transaction.commit().await.map_err(failed("commit"))?;
        Ok(pruned)
    }
}
