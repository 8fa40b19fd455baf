//! Tells systemd, and clients over HTTP, how the relay is.

pub(crate) mod front;
pub(crate) mod databases;
pub(crate) mod http;
mod push;
pub(crate) mod systemd;

pub(crate) use self::{
    databases::{Database, Databases},
    front::Front,
};
