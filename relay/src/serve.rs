//! Who is told how the relay is: whoever asks over HTTP, and systemd.

pub(crate) mod http;
pub(crate) mod systemd;
