//! Messages that their handlers park, and which of their deliveries were attempts.
//!
//! JetStream counts a parked delivery like any other. So the number of the last one that was parked is kept, with how many
//! attempts there were before it: whatever comes later counts, also a delivery that left no trace because its process
//! died. Each statement stands alone, without a transaction around it.

use std::time::{Duration, SystemTime};

use deadpool_postgres::Transaction;
use oncebox_schema::SchemaName;
use tokio_postgres::types::Type;

use super::{Parameter, Store, dead_letter::bigint, discard, failed, statement};
use crate::{Error, Received, failure::bounded, identity::Identity};

/// The statements, as this schema has them.
#[derive(Debug)]
pub(super) struct Park {
    park: String,
    parked: String,
    unpark: String,
    sweep: String,
}

impl Park {
    pub(super) fn new(schema: &SchemaName) -> Self {
        Self {
            park: statement(schema, include_str!("park/park.sql")),
            parked: statement(schema, include_str!("park/parked.sql")),
            unpark: statement(schema, include_str!("park/unpark.sql")),
            sweep: statement(schema, include_str!("park/sweep_parks.sql")),
        }
    }
}

/// What is known of the last delivery that was parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parked {
    /// Its number.
    pub(crate) delivery: u64,
    /// How many deliveries before it were attempts.
    pub(crate) attempts: u64,
}

impl Parked {
    /// Which attempt the delivery of this number is, counted from 1.
    pub(crate) fn attempt(self, delivery: u64) -> u64 {
        match delivery.checked_sub(self.delivery) {
            // Run once more before it was given back.
            Some(0) => self.attempts + 1,
            Some(since) => self.attempts + since,
            // JetStream has forgotten its count, and counts anew.
            None => delivery,
        }
    }
}

impl Store {
    /// What is known of the last delivery of this message that was parked, if one was.
    pub(crate) async fn parked(
        &self,
        scope: &str,
        identity: &Identity,
        received: &Received,
    ) -> Result<Option<Parked>, Error> {
        const WHAT: &str = "read what is parked";
        let (key, message) = (identity.key.as_str(), name(received));
        let parameters: [Parameter<'_>; 4] = [
            (&scope, Type::TEXT),
            (&identity.tenant, Type::TEXT),
            (&key, Type::TEXT),
            (&message, Type::TEXT),
        ];
        let object = self.connect().await?;
        let row = self.answered(WHAT, object.query_typed_opt(&self.park.parked, &parameters)).await;
        let row = row.inspect_err(|_| discard(object))?.map_err(failed(WHAT))?;
        let number = |number: i64| u64::try_from(number).unwrap_or(0);
        Ok(row.map(|row| Parked { delivery: number(row.get(0)), attempts: number(row.get(1)) }))
    }

    /// Notes that this delivery is parked; tells how often the message has been, and for how long in all.
    pub(crate) async fn park(
        &self,
        scope: &str,
        identity: &Identity,
        received: &Received,
        attempts: u64,
        after: Duration,
        reason: &str,
    ) -> Result<(u64, Duration), Error> {
        const WHAT: &str = "park a message";
        let (key, message) = (identity.key.as_str(), name(received));
        let (delivery, attempts) = (bigint(received.delivery_count().max(1)), bigint(attempts));
        let milliseconds = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let parameters: [Parameter<'_>; 9] = [
            (&scope, Type::TEXT),
            (&identity.tenant, Type::TEXT),
            (&key, Type::TEXT),
            (&message, Type::TEXT),
            (&delivery, Type::INT8),
            (&attempts, Type::INT8),
            (&milliseconds(after), Type::INT8),
            (&milliseconds(self.limits.park_max), Type::INT8),
            (&bounded(reason), Type::TEXT),
        ];
        let object = self.connect().await?;
        let row = self.answered(WHAT, object.query_typed_one(&self.park.park, &parameters)).await;
        let row = row.inspect_err(|_| discard(object))?.map_err(failed(WHAT))?;
        let number = |number: i64| u64::try_from(number).unwrap_or(0);
        Ok((number(row.get(0)), Duration::from_millis(number(row.get(1)))))
    }

    /// Forgets that a key was parked, among the writes of a transaction that gives it up.
    pub(crate) async fn unpark(
        &self,
        transaction: &Transaction<'_>,
        scope: &str,
        identity: &Identity,
    ) -> Result<(), Error> {
        let parameters: [Parameter<'_>; 3] =
            [(&scope, Type::TEXT), (&identity.tenant, Type::TEXT), (&identity.key.as_str(), Type::TEXT)];
        let unparked = transaction.execute_typed(&self.park.unpark, &parameters).await;
        unparked.map(drop).map_err(failed("forget what was parked"))
    }

    /// Deletes a bounded number of rows of messages that are parked no more.
    pub(crate) async fn sweep_parks(&self, scope: &str) -> Result<(), Error> {
        let object = self.connect().await?;
        let swept = object.execute_typed(&self.park.sweep, &[(&scope, Type::TEXT)]).await;
        swept.map(drop).map_err(failed("forget what was parked"))
    }
}

/// Which copy of a message: a stream that is recreated counts from 1 again.
fn name(received: &Received) -> String {
    let Some(origin) = received.origin() else { return String::new() };
    let stored = origin.stored_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{} {} {}", origin.stream, origin.sequence, stored.as_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_that_were_parked_are_no_attempts() {
        let check = |delivery, attempts, later: &[(u64, u64)]| {
            let parked = Parked { delivery, attempts };
            for (number, expected) in later {
                assert_eq!(parked.attempt(*number), *expected, "{parked:?}, delivery {number}");
            }
        };
        // Parked at once, however often: the next is the first attempt.
        check(1, 0, &[(1, 1), (2, 1), (3, 2)]);
        check(70, 0, &[(70, 1), (71, 1), (75, 5)]);
        // Two attempts came before.
        check(9, 2, &[(10, 3), (12, 5)]);
        // A consumer that was recreated counts from 1.
        check(70, 3, &[(1, 1), (5, 5)]);
    }
}
