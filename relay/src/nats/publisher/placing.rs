//! Finds the JetStream of a stream that has just acknowledged something for the first time.

use std::sync::Arc;

use tokio::time::Instant;
use tracing::warn;

use super::{Publisher, answer::StreamInfo, batch::Batch};
use crate::{
    delivery::{Birth, Failure, Message, Outcome, is_unseen, place::unseen, split},
    nats::{connection::Reply, proof},
};

/// Whether a stream of this name is the one that has acknowledged.
enum Seen {
    Yes(Option<Birth>),
    No,
    /// There was no answer in time: it is asked again.
    Unknown,
}

impl Publisher {
    /// Gives the streams that have acknowledged messages of a batch the names that receipts have,
    /// and remembers the subjects. Messages of a stream that cannot be looked for now count as not
    /// answered, for a while: settled under no name, they would be lost with the server that is
    /// just going away.
    pub(super) async fn place(&self, batch: &mut Batch<'_>, end: Instant) {
        for acknowledged in batch.streams.clone() {
            let known = self.connection.places.found(&acknowledged);
            let name = match known {
                Some(name) => Some(name),
                None => self.find(&acknowledged, batch, end).await,
            };
            if name.as_ref() == Some(&acknowledged) {
                continue;
            }
            let nobody: Arc<str> = unseen(&acknowledged).into();
            for (message, outcome) in batch.messages.iter().zip(&mut batch.outcomes) {
                if let Outcome::Stored { stream, .. } = outcome
                    && *stream == acknowledged
                {
                    match &name {
                        Some(name) => *stream = Arc::clone(name),
                        None => {
                            // It has a stream, which costs no attempt while it is away.
                            let noted = (message.subject.as_str(), &nobody);
                            self.connection.places.note_subjects(std::iter::once(noted));
                            *outcome = Outcome::Unknown;
                        }
                    }
                }
            }
        }
        let stored = batch.messages.iter().zip(&batch.outcomes);
        let stored = stored.filter_map(|(message, outcome)| match outcome {
            Outcome::Stored { stream, .. } => Some((message.subject.as_str(), stream)),
            _ => None,
        });
        self.connection.places.note_subjects(stored);
    }

    /// `None` when there is no answer now.
    async fn find(&self, acknowledged: &Arc<str>, batch: &Batch<'_>, end: Instant) -> Option<Arc<str>> {
        let stored = batch.messages.iter().zip(&batch.outcomes);
        let example = stored.filter_map(|(message, outcome)| match outcome {
            Outcome::Stored { stream, sequence, .. } if stream == acknowledged => Some((message, *sequence)),
            _ => None,
        });
        // The newest: a stream that keeps little has it.
        let Some((message, sequence)) = example.max_by_key(|(_, sequence)| *sequence) else {
            return Some(Arc::clone(acknowledged));
        };
        // A JetStream that the configuration names comes first.
        let (_, plain) = split(acknowledged);
        let configured = self.connection.has_own_api.then_some(plain);
        let mut is_known = true;
        for name in configured.into_iter().chain([&**acknowledged]) {
            match self.is_seen(name, message, sequence, end).await {
                Seen::Yes(birth) => {
                    let name: Arc<str> = name.into();
                    birth.into_iter().for_each(|birth| self.connection.places.note_birth(&name, birth));
                    self.connection.places.note_stream(acknowledged, &name);
                    return Some(name);
                }
                Seen::No => {}
                Seen::Unknown => is_known = false,
            }
        }
        if !is_known && self.connection.places.may_be_found(acknowledged) {
            return None;
        }
        let name: Arc<str> = unseen(acknowledged).into();
        if is_known && self.connection.places.note_stream(acknowledged, &name) {
            warn!(
                stream = &**acknowledged,
                "the stream acknowledges, but no JetStream that this relay may ask knows it, so what it loses cannot be \
                 found; see the options nats-domain and nats-api-prefix"
            );
        }
        Some(name)
    }

    /// Whether it takes the subject, or has the message where it was acknowledged: after a mapping
    /// of subjects it has another one.
    async fn is_seen(&self, name: &str, message: &Message, sequence: u64, end: Instant) -> Seen {
        match self.connection.ask_for_stream(name, end).await {
            Reply::Answer(info) => match StreamInfo::parse(&info) {
                Some(info) if info.takes(&message.subject) => Seen::Yes(info.birth()),
                Some(info) => match proof::stored_id(&self.connection, name, sequence).await {
                    Ok(Some(id)) if id == message.sent_id() => Seen::Yes(info.birth()),
                    Ok(_) => Seen::No,
                    Err(_) => Seen::Unknown,
                },
                None => Seen::No,
            },
            // The way to a domain may have been cut right after the acknowledgement.
            Reply::NoResponders if split(name).0.is_some() => Seen::Unknown,
            Reply::NoResponders => Seen::No,
            // Nothing shows that it is another one.
            Reply::Denied => Seen::Yes(None),
            Reply::Silence => Seen::Unknown,
        }
    }

    /// No stream took a message for a subject, and the JetStream that the relay asks has none for
    /// it. A stream that acknowledged the subject before, and that this JetStream does not know, is
    /// away, not gone.
    pub(super) async fn why_gone(&self, subject: &str, end: Instant) -> Failure {
        let known = self.connection.places.of(subject);
        let Some(name) = known.filter(|name| split(name).0.is_some()) else { return Failure::NoResponders };
        let stream = split(&name).1.to_owned();
        if is_unseen(&name) {
            return Failure::Unreachable { stream };
        }
        match self.connection.ask_for_stream(&name, end).await {
            Reply::Answer(info) => match StreamInfo::parse(&info) {
                Some(info) if info.takes(subject) => Failure::NoLeader { stream },
                _ => Failure::NoResponders,
            },
            Reply::NoResponders | Reply::Silence | Reply::Denied => Failure::Unreachable { stream },
        }
    }

    /// The stream that has acknowledged a subject, if the JetStream that is asked does not know it.
    pub(super) fn elsewhere(&self, subject: &str) -> Option<String> {
        let name = self.connection.places.of(subject)?;
        let (domain, stream) = split(&name);
        domain.map(|_| stream.to_owned())
    }
}
