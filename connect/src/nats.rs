//! NATS: the connection, the limits of its user, and questions to JetStream.

mod connection;
mod connection_error;
mod payload_max;
mod permissions;
mod question;

pub use self::{
    connection::{Connection, HOME_SUBJECTS, Server},
    connection_error::ConnectionError,
    question::{QUESTION_TIMEOUT, answer_max, found, message_max, stream_info, unless_denied},
};

/// Whether a connection that comes back by itself is there now.
#[must_use]
pub fn is_connected(context: &async_nats::jetstream::Context) -> bool {
    context.client().connection_state() == async_nats::connection::State::Connected
}
