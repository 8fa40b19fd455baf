//! A cheap look whether anything may have become due, so that a relay at rest need not claim lanes
//! to find out.

use std::{sync::Arc, time::Duration};

use super::{Store, parameter::Parameter};
use crate::error::StoreError;

/// A connection that nobody has used for so long is closed.
const IDLE_CONNECTION: Duration = Duration::from_secs(5);

/// What a look has seen.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    /// Its snapshot: what was visible in it, a claim after this look sees as well.
    pub(crate) snapshot: String,
    /// A transaction has ended since the earlier look, and may have enqueued something.
    pub(crate) has_ended: bool,
    /// The next enqueue wakes a relay: the sleep mark is set.
    pub(crate) is_asleep: bool,
    /// Producers send NOTIFY when the sleep mark is set.
    pub(crate) notifies: bool,
}

impl Store {
    /// Looks whether the log may have changed since an earlier look, by the snapshot of that look.
    /// Nothing is prepared: outside of a transaction nobody checks whose session a pooler has lent.
    pub(crate) async fn look(self: &Arc<Self>, before: Option<&str>) -> Result<Look, StoreError> {
        let session = self.session().await?;
        let parameters: [&dyn Parameter; 1] = [&before];
        let rows = session.query_unprepared("look at the log", &self.sql.look, &parameters).await?;
        session.give_back();
        let row = rows.first().expect("a sequence has one row");
        Ok(Look {
            snapshot: row.get("snapshot"),
            has_ended: row.get("has_ended"),
            is_asleep: row.get("is_asleep"),
            notifies: row.get("notifies"),
        })
    }

    /// Closes connections that nobody has used for a while.
    pub(crate) fn close_idle(&self) {
        drop(self.pool.retain(|_, metrics| metrics.last_used() < IDLE_CONNECTION));
    }
}
