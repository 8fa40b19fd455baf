//! Where the outbox lives: the facts from the database, and notes in it.

use std::{sync::Arc, time::Duration};

use super::Store;
use crate::{
    delivery::home::{Look, Noted, Rival},
    error::StoreError,
};

/// A database and the schema in it, even after a rename: the cluster's identifier, the database's
/// oid, and the schema's name.
pub(crate) type Place = (i64, i64, String);

/// The database's facts about the outbox's home.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    pub(crate) look: Look,
    /// Common to the outbox and its copies; `None` before the first relay.
    pub(crate) token: Option<String>,
    /// When the home was noted, in microseconds, or now where it is not; and now.
    pub(crate) since: (i64, i64),
    pub(crate) here: Place,
}

impl Store {
    /// Looks where the outbox lives. `address` is that by which this relay knows the database. The
    /// outbox has the identity from here on that it has there.
    pub(crate) async fn look_home(self: &Arc<Self>, address: &str) -> Result<Option<Home>, StoreError> {
        let rows = self.ask("look where the outbox lives", &self.sql.home, &[&address]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        self.be_outbox(row.get("identity"));
        let time = |name| Duration::from_micros(row.get::<_, Option<i64>>(name).unwrap_or(0).unsigned_abs());
        let rival = row.get::<_, Option<String>>("rival");
        let noted = match row.get("verdict") {
            "new" => Noted::New,
            "here" => Noted::Here,
            "moved" => Noted::Moved,
            _ => Noted::Copy,
        };
        let (name, noted_address): (&str, &str) = (row.get("noted_name"), row.get("address"));
        let look = Look {
            noted,
            place: format!("{noted_address}, database {name}"),
            is_same_address: row.get::<_, bool>("is_same_address") && !is_own_machine(address),
            rival: rival.map(|address| Rival { address, seen: time("seen_us"), lasted: time("lasted_us") }),
        };
        let here = (row.get("system_identifier"), row.get("database_oid"), self.schema().as_str().to_owned());
        let since = (row.get("noted_us"), row.get("now_us"));
        Ok(Some(Home { look, token: row.get("token"), since, here }))
    }

    /// Notes that the outbox lives here, if the verdict is as it was.
    pub(crate) async fn note_home(self: &Arc<Self>, address: &str, noted: Noted) -> Result<(), StoreError> {
        let verdict = match noted {
            Noted::New => "new",
            Noted::Here => "here",
            Noted::Moved => "moved",
            Noted::Copy => "copy",
        };
        self.ask("note where the outbox lives", &self.sql.note_home, &[&address, &verdict]).await.map(drop)
    }

    /// Notes that a relay serves the outbox in another database.
    pub(crate) async fn note_rival(self: &Arc<Self>, address: &str) -> Result<(), StoreError> {
        self.ask("note another home of the outbox", &self.sql.note_rival, &[&address]).await.map(drop)
    }

    /// Whether a relay is one of this database.
    pub(crate) async fn knows_relay(self: &Arc<Self>, id: &str) -> Result<bool, StoreError> {
        let rows = self.ask("look for a relay", &self.sql.knows_relay, &[&id]).await?;
        Ok(rows.first().is_some_and(|row| row.get("knows")))
    }
}

/// An address that each machine has says nothing about which one it is.
fn is_own_machine(address: &str) -> bool {
    ["/", "localhost", "127.", "[::1]", "::1"]
        .iter()
        .any(|own| address.contains(&format!("//{own}")) || address.starts_with(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_address_on_the_network_tells_a_machine() {
        for own in
            ["localhost:5432/orders", "127.0.0.1:5432/orders", "/run/postgresql/orders", "[::1]:5432/a"]
        {
            assert!(is_own_machine(own), "{own}");
        }
        assert!(!is_own_machine("db.internal:5432/orders"));
    }
}
