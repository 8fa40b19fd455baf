//! NATS as a relay speaks it: publishing, the streams that it publishes to, and what they still
//! have.

pub(crate) mod connection;
pub(crate) mod keeper;
mod places;
pub(crate) mod proof;
pub(crate) mod publisher;
mod stored_id;
pub(crate) mod streams;
