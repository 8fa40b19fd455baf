//! The relay's side of NATS: it publishes messages, keeps declared streams, and asks streams which
//! messages they still have.

pub(crate) mod connection;
pub(crate) mod home;
pub(crate) mod keeper;
pub(crate) mod letter;
pub(crate) mod objects;
pub(crate) mod places;
pub(crate) mod proof;
pub(crate) mod publisher;
mod stored_id;
pub(crate) mod streams;
pub(crate) mod wake;

pub(crate) use self::connection::{Connection, Connections, Server};
