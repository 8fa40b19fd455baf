//! Messages that should have had an effect in an inbox by now: `0021_expectations.sql` looks for
//! them where the inbox is in the same database. Here the relays of one process look in each
//! other's.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use oncebox_connect::postgres::Parameter;
use tokio_postgres::Row;

use super::Store;
use crate::{delivery::lag::Expectation, error::StoreError};

/// The databases that the relays of this process serve, by their names. One that is away has none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peers(Arc<Mutex<HashMap<String, Weak<Store>>>>);

impl Peers {
    pub(crate) fn enter(&self, name: &str, store: &Arc<Store>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, store| store.strong_count() > 0);
        all.insert(name.to_owned(), Arc::downgrade(store));
    }

    fn find(&self, scope: &str, name: &str) -> Result<Arc<Store>, StoreError> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(name).and_then(Weak::upgrade).ok_or_else(|| {
            let mut known: Vec<&str> = all.keys().map(String::as_str).collect();
            known.sort_unstable();
            let known = if known.is_empty() { "one without a name".to_owned() } else { known.join(", ") };
            StoreError::NoPeer { scope: scope.to_owned(), database: name.to_owned(), known }
        })
    }
}

/// An expectation whose inbox is in another database, and the transactions that are due.
struct Elsewhere {
    expectation: i64,
    scope: String,
    database: String,
    first_xact: Option<String>,
    end_xact: Option<String>,
}

impl Elsewhere {
    fn new(row: &Row) -> Option<Self> {
        let database = row.get::<_, Option<String>>("inbox_database")?;
        Some(Self {
            expectation: row.get("expectation"),
            scope: row.get("scope"),
            database,
            first_xact: row.get("first_xact"),
            end_xact: row.get("end_xact"),
        })
    }
}

impl Store {
    /// Looks for messages that are not in their inbox in time. Returns whether there is more to
    /// look at now.
    pub(crate) async fn look_for_unhandled(self: &Arc<Self>, peers: &Peers) -> Result<bool, StoreError> {
        let rows =
            self.ask("look for messages that nobody handles", &self.sql.look_for_unhandled, &[]).await?;
        let mut looked = Ok(rows.iter().any(|row| row.get("is_behind")));
        for row in &rows {
            if let Some(reason) = row.get("fault") {
                looked = Err(StoreError::Unjudged { scope: row.get("scope"), reason });
            }
        }
        for elsewhere in rows.iter().filter_map(Elsewhere::new) {
            // One that fails stops no other.
            if let Err(error) = self.look_elsewhere(&elsewhere, peers).await {
                looked = Err(error);
            }
        }
        looked
    }

    async fn look_elsewhere(
        self: &Arc<Self>,
        elsewhere: &Elsewhere,
        peers: &Peers,
    ) -> Result<(), StoreError> {
        let Elsewhere { expectation, scope, database, first_xact, end_xact } = elsewhere;
        let peer = peers.find(scope, database)?;
        let due: [&dyn Parameter; 3] = [expectation, first_xact, end_xact];
        let messages = self.ask("read what is expected", &self.sql.expected_messages, &due).await?;
        let keys: Vec<&str> = messages.iter().map(|row| row.get("key")).collect();
        let arrived = peer.ask("look for keys", &peer.sql.arrived_keys, &[scope, &keys]).await?;
        let arrived: HashSet<&str> = arrived.iter().map(|row| row.get(0)).collect();
        let missing = || messages.iter().filter(|row| !arrived.contains(row.get::<_, &str>("key")));
        let lanes: Vec<i16> = missing().map(|row| row.get("lane")).collect();
        let ids: Vec<i64> = missing().map(|row| row.get("id")).collect();
        let noted: [&dyn Parameter; 5] = [expectation, first_xact, end_xact, &lanes, &ids];
        self.ask("note what nobody handles", &self.sql.note_unhandled, &noted).await.map(drop)
    }
}

/// Of a row of `expectations.sql`.
#[must_use]
pub fn expectation(row: &Row) -> Expectation {
    Expectation {
        subject: row.get("subject"),
        handled_by: row.get("scope"),
        within_seconds: row.get("within_seconds"),
        inbox_database: row.get("inbox_database"),
        looked_seconds: row.get("looked_seconds"),
        unhandled: row.get("unhandled"),
        oldest_seconds: row.get("oldest_seconds"),
        oldest_key: row.get("oldest_key"),
    }
}
