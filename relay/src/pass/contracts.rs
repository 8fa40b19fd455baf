//! Checks payloads against the contracts of their subjects, before any of them is sent.

use bytes::Bytes;
use tokio::{task::consume_budget, time::Instant};
use tracing::debug;

use crate::{
    config::Limits,
    delivery::{Failure, INLINE_MAX, Message},
    error::error_chain,
    postgres::Session,
};

/// Marks the messages that break their contract. Each pass does so anew: also for messages that are
/// tried again, replayed, or were delayed. A message for which there is no time, or whose payload
/// PostgreSQL does not give, is not sent in this pass.
pub(super) async fn check(messages: &mut [Message], session: &Session, limits: &Limits) {
    let Some(contracts) = &limits.contracts else { return };
    let until = Instant::now() + limits.batch_timeout;
    for message in messages.iter_mut().filter(|message| message.is_free()) {
        if contracts.of(&message.subject).is_none() {
            continue;
        }
        consume_budget().await;
        message.is_unchecked = Instant::now() >= until;
        if message.is_unchecked {
            continue;
        }
        let payload = match message.is_left_out() {
            false => Some(message.payload.clone()),
            // It is too large for NATS, and dead for that.
            true if limits.large_payloads.is_none() => continue,
            true if message.payload_bytes > INLINE_MAX => {
                let bytes = message.payload_bytes;
                let why = format!("it has {bytes} bytes, of which the relay checks {INLINE_MAX} at most");
                message.breach = Some(Failure::Breach(why));
                continue;
            }
            true => read(message, session).await,
        };
        match payload.map(|payload| contracts.check(&message.subject, &payload)) {
            None => message.is_unchecked = true,
            Some(checked) => {
                message.breach = checked.err().map(|breach| Failure::Breach(breach.to_string()));
            }
        }
    }
}

/// The payload, piece by piece; `None` where it does not come whole.
async fn read(message: &Message, session: &Session) -> Option<Bytes> {
    let mut whole = Vec::with_capacity(message.payload_bytes);
    while whole.len() < message.payload_bytes {
        let piece = session.payload_piece(message, whole.len()).await;
        let piece =
            piece.inspect_err(|error| debug!(error = %error_chain(error), "read a payload for its contract"));
        let piece = piece.ok().filter(|piece| !piece.is_empty())?;
        whole.extend_from_slice(&piece);
    }
    Some(whole.into())
}
