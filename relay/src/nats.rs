//! NATS: the connection, publishing, streams and permissions. The only room that speaks NATS.

pub(crate) mod connection;
pub(crate) mod keeper;
mod permissions;
mod places;
pub(crate) mod proof;
pub(crate) mod publisher;
pub(crate) mod reader;
mod stored_id;
pub(crate) mod streams;
pub(crate) mod survey;
