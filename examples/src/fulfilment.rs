//! An order is fulfilled by three services, each with a database of its own: the inventory
//! reserves, billing charges, shipping sends a parcel. When one of them says no, the others undo
//! their part.
//!
//! Each service does so for every caller, and undoes it when asked with the action's key and
//! `:undo` at its end. In [`orders`] a saga asks. In [`choreography`] no orchestrator asks: each
//! service reacts to the others' events.

use oncebox_outbox::{Key, KeyError};
use serde::{Deserialize, Serialize};

pub mod billing;
pub mod choreography;
pub mod inventory;
pub mod ledger;
pub mod orders;
pub mod shipping;

/// An order, as every message about it carries it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Its id; all keys begin with it.
    pub id: String,
    /// The ordered item.
    pub item: String,
    /// How many of it.
    pub count: i32,
    /// The price of all.
    pub cents: i64,
    /// Where the parcel goes.
    pub city: String,
}

impl Order {
    /// The root of the keys of everything that is done for it.
    ///
    /// # Errors
    /// The order's id cannot be a key.
    pub fn key(&self) -> Result<Key, KeyError> {
        Key::root(&self.id)
    }
}
