//! The retention of inboxes, by hand.

use oncebox_connect::postgres::Parameter;
use serde::Serialize;

use super::{Operator, Result};

/// Blocks of each table that one transaction looks at.
const BLOCKS: i64 = 128;

/// Rows of inboxes that were past their retentions, and were deleted but for letters that are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Swept {
    /// Keys of messages and requests, with their outcomes.
    pub keys: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Dead letters that stay although they are past their retention: messages of their ordering
    /// keys wait for them.
    pub kept_letters: u64,
    /// Claims under leases that were never continued.
    pub claims: u64,
    /// Effects outside the database that went with these, and for which it is not known whether
    /// they happened.
    pub unknown_effects: u64,
}

impl Operator {
    /// Deletes rows of inboxes that are past the retentions which the inboxes have registered -
    /// keys, dead letters, abandoned claims with the records of their effects - as their own
    /// processes do. A dry run only counts them; it counts claims with unknown effects, not the
    /// effects of keys that died.
    ///
    /// # Errors
    /// PostgreSQL refused or went away: whole steps are done, and the same call goes on with the
    /// rest.
    pub async fn sweep_inboxes(&mut self, dry_run: bool) -> Result<Swept> {
        let rows = self.query("measure the inbox", &self.sql.sweep_blocks, &[]).await?;
        let blocks = rows.first().map_or(0, |row| row.get::<_, i64>(0));
        let (mut swept, mut first) = (Swept::default(), 0);
        while first < blocks {
            let step = self.sweep_step(first, dry_run).await?;
            swept.keys += step.keys;
            swept.dead_letters += step.dead_letters;
            swept.kept_letters += step.kept_letters;
            swept.claims += step.claims;
            swept.unknown_effects += step.unknown_effects;
            first += BLOCKS;
        }
        Ok(swept)
    }

    async fn sweep_step(&mut self, first: i64, dry_run: bool) -> Result<Swept> {
        let parameters: [&dyn Parameter; 3] = [&first, &(first + BLOCKS), &dry_run];
        let rows = self.change("sweep the inbox", |sql| &sql.sweep, &parameters, false).await?;
        let count = |column: &str| {
            rows.first().and_then(|row| u64::try_from(row.get::<_, i64>(column)).ok()).unwrap_or(0)
        };
        Ok(Swept {
            keys: count("keys"),
            dead_letters: count("dead_letters"),
            kept_letters: count("kept_letters"),
            claims: count("claims"),
            unknown_effects: count("unknown_effects"),
        })
    }
}
