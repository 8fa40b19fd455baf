//! The steps of messages, as a recording has them for the checker in `model/`: claims, how handlers
//! ended, commits, answers to the broker. They have hashes of keys and replies, and neither keys
//! nor payloads.
//!
//! A message is known by its sequence in the stream: a process holds it once, so its steps follow
//! one another.

#[cfg(feature = "nats")]
use async_nats::jetstream::{self, AckKind};
use oncebox_claims::{
    Claim,
    failure::CommitError,
    identity::Identity,
    leased::HeldClaim,
    stored::{Status, Stored},
    transactional::TransactionId,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{Received, inbox::Shared, runner::Failure};

/// How a commit went, as far as this process knows.
#[derive(Clone, Copy)]
pub(crate) enum Ended {
    Committed,
    /// Its answer did not come.
    Lost,
    /// It has no effect.
    Refused,
    /// The lease is another owner's.
    Fenced,
}

/// How a key is about to end.
pub(crate) struct Ending<'a> {
    pub(crate) status: &'static str,
    pub(crate) reply: Option<&'a [u8]>,
    /// The transaction that writes it, where that is known.
    pub(crate) xact: Option<TransactionId>,
    /// Under a lease.
    pub(crate) epoch: Option<i64>,
}

impl Ending<'_> {
    /// A dead letter that ends no key: it has none, or its key has another payload.
    pub(crate) const ASIDE: Self = Self { status: "aside", reply: None, xact: None, epoch: None };
}

impl Ended {
    pub(crate) fn of(committed: &Result<(), CommitError>) -> Self {
        match committed {
            Ok(()) => Self::Committed,
            Err(CommitError::Lost(_)) => Self::Lost,
            Err(CommitError::Conflict(_) | CommitError::Refused(_)) => Self::Refused,
        }
    }

    fn step(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::Lost => "lost",
            Self::Refused => "refused",
            Self::Fenced => "fenced",
        }
    }
}

impl Shared {
    /// A claim in a transaction; `None` when it is made again in another.
    pub(crate) fn record_claim(&self, received: &Received, identity: &Identity, claim: Option<&Claim>) {
        self.record(received, Some(identity), "claimed", || match claim {
            Some(claim) => claimed(claim, |id| json!({ "how": "won", "xact": id.as_i64() })),
            None => json!({ "how": "again" }),
        });
    }

    /// A claim under a lease.
    pub(crate) fn record_leased(&self, received: &Received, identity: &Identity, claim: &Claim<HeldClaim>) {
        self.record(received, Some(identity), "claimed", || {
            claimed(claim, |held| {
                json!({ "how": "won", "epoch": held.epoch(), "taken_over": held.lease().is_taken_over() })
            })
        });
    }

    /// How a handler ended that leaves nothing to commit.
    pub(crate) fn record_failure(&self, received: &Received, identity: &Identity, failure: &Failure) {
        self.record(received, Some(identity), "failed", || json!({ "how": failure.name() }));
    }

    /// A claim under a lease is given back.
    pub(crate) fn record_release(&self, received: &Received, identity: &Identity, epoch: i64) {
        self.record(received, Some(identity), "released", || json!({ "epoch": epoch }));
    }

    /// The commit of a key's end is about to be sent.
    pub(crate) fn record_ending(&self, received: &Received, identity: Option<&Identity>, ending: Ending<'_>) {
        self.record(received, identity, "committing", || {
            json!({
                "status": ending.status,
                "reply": ending.reply.map(hash),
                "xact": ending.xact.map(|id| *id.as_i64()),
                "epoch": ending.epoch,
            })
        });
    }

    /// The commit was answered, or was not.
    pub(crate) fn record_ended(&self, received: &Received, identity: Option<&Identity>, ended: Ended) {
        self.record(received, identity, ended.step(), || json!({}));
    }

    /// An answer is about to be sent to the broker.
    #[cfg(feature = "nats")]
    pub(crate) fn record_answer(&self, message: &jetstream::Message, kind: AckKind) {
        let Some(recording) = &self.settings.recording else { return };
        let answer = match kind {
            AckKind::Ack => "ack",
            AckKind::Term => "term",
            AckKind::Nak(_) => "nak",
            AckKind::Progress | AckKind::Next => return,
        };
        let sequence = message.info().ok().map(|info| info.stream_sequence);
        recording.write("answering", json!({ "message": sequence, "answer": answer }));
    }

    fn record(
        &self,
        received: &Received,
        identity: Option<&Identity>,
        step: &str,
        line: impl FnOnce() -> Value,
    ) {
        let Some(recording) = &self.settings.recording else { return };
        let mut line = line();
        line["message"] = received.origin.as_ref().map(|origin| origin.sequence).into();
        line["key"] = identity.map(|identity| identity.lock).into();
        recording.write(step, line);
    }
}

fn claimed<W>(claim: &Claim<W>, won: impl FnOnce(&W) -> Value) -> Value {
    match claim {
        Claim::Won(winner) => won(winner),
        Claim::InFlight | Claim::Alone => json!({ "how": "in_flight" }),
        Claim::Copy(Stored { status, outcome, .. }) => {
            // The reason of a dead key is a text for people.
            let reply = outcome.as_deref().filter(|_| *status != Status::Dead);
            json!({ "how": "stored", "status": status.as_str(), "reply": reply.map(hash) })
        }
        Claim::Mismatch(_) => json!({ "how": "mismatch" }),
    }
}

/// The first 8 bytes of SHA-256, in hexadecimal.
fn hash(reply: &[u8]) -> String {
    Sha256::digest(reply)[..8].iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}
