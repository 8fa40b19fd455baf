//! Why a duplicate arrived.

use std::sync::atomic::{AtomicU64, Ordering};

use oncebox_schema::{MessageId, Sending};

use crate::Received;

/// Why a message came although its key was handled before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// JetStream delivered it again: its acknowledgement was lost, or late.
    Redelivery,
    /// A relay published it again: the row of the outbox is the same, or an operator asked for a
    /// replay.
    Republish,
    /// The sender is not an outbox, and sent the message again.
    ClientRetry,
    /// Another row of an outbox has the same key.
    OtherMessage,
}

impl Cause {
    pub(crate) const ALL: [Self; 4] =
        [Self::Redelivery, Self::Republish, Self::ClientRetry, Self::OtherMessage];

    /// The cause as the label of a metric.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Redelivery => "redelivery",
            Self::Republish => "republish",
            Self::ClientRetry => "client_retry",
            Self::OtherMessage => "other_message",
        }
    }

    /// Of a message whose key was stored by the outbox's row of this id, if by one.
    pub(crate) fn of(received: &Received, stored_id: Option<i64>) -> Self {
        if received.delivery_count() > 1 {
            return Self::Redelivery;
        }
        let id = || received.header_value("Nats-Msg-Id").and_then(MessageId::parse);
        let is_replay = || id().is_some_and(|id| id.sending != Sending::Message);
        match (received.id(), stored_id) {
            (Some(id), Some(stored)) if id != stored => Self::OtherMessage,
            (Some(_), Some(_)) => Self::Republish,
            _ if is_replay() => Self::Republish,
            _ => Self::ClientRetry,
        }
    }
}

/// How many duplicates there were of each cause.
#[derive(Debug, Default)]
pub(crate) struct Causes([AtomicU64; Cause::ALL.len()]);

impl Causes {
    pub(crate) fn add(&self, cause: Cause) {
        self.0[cause as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, cause: Cause) -> u64 {
        self.0[cause as usize].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duplicate_has_one_cause() {
        let check = |deliveries, headers: &[(&str, &str)], stored, expected| {
            let message = headers
                .iter()
                .fold(Received::new("s", ""), |message, (name, value)| message.header(*name, *value));
            assert_eq!(
                Cause::of(&message.deliveries(deliveries), stored),
                expected,
                "{headers:?} {stored:?}"
            );
        };
        check(2, &[("Oncebox-Id", "7")], Some(8), Cause::Redelivery);
        check(1, &[("Oncebox-Id", "7")], Some(7), Cause::Republish);
        check(
            1,
            &[("Oncebox-Id", "7"), ("Nats-Msg-Id", "0123456789ab/AAAAAAAAAAAAAAAA/r2/k")],
            Some(7),
            Cause::Republish,
        );
        check(1, &[("Nats-Msg-Id", "0123456789ab/AAAAAAAAAAAAAAAA/d2/k")], None, Cause::Republish);
        check(1, &[("Oncebox-Id", "7")], Some(8), Cause::OtherMessage);
        check(1, &[("Oncebox-Id", "7")], None, Cause::ClientRetry);
        check(1, &[("Nats-Msg-Id", "k")], Some(7), Cause::ClientRetry);
        check(1, &[("Nats-Msg-Id", "k;r=2")], None, Cause::ClientRetry);
        check(1, &[], None, Cause::ClientRetry);
        for (number, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, number);
        }
    }
}
