//! Tells systemd, and clients over HTTP, how the relay is.

pub(crate) mod http;
pub(crate) mod systemd;
