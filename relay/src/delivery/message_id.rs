//! The `Nats-Msg-Id` of messages: why a duplicate is always a copy.
//!
//! A stream answers `duplicate` to every id that it has seen within its window, no matter who
//! published it and with which body, and the relay settles a message that is answered so. The id
//! must therefore name the row, not only the key:
//!
//! - **Another outbox with the same keys** on the same stream has another identity.
//! - **The same key again** is another row: a producer enqueued it once more after retention
//!   deleted the first, or after a failover to a standby that had not received it, perhaps with
//!   another body. The new row may even have the id of the lost one, since a promoted standby gives
//!   ids out again; but not its time.
//! - **A deliberate replay** has its number, and the time when it was asked for: after a failover
//!   numbers are given out again as well.
//!
//! The id has all that, and nothing that changes: the row is append-only, and a dump keeps it and
//! the outbox's identity. So a message that is sent again after a crash, a lost commit or a restore
//! has the same id. If a row was lost and the producer enqueues the very same message again, the
//! stream stores a second copy, which the inbox drops. This is the safe side: no relay would notice
//! a message that was settled and never stored.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use oncebox_schema::{Digest, MessageId, Sending};
use sha2::{Digest as _, Sha256};

use crate::delivery::{decision::Failure, message::Message};

impl Message {
    /// The id of the message, or of its replay, as it was published; empty for one that could not
    /// be sent. Receipts, and questions to streams, name the message by it.
    pub(crate) fn sent_id(&self) -> String {
        self.own_headers().map(|headers| self.message_id(&headers)).unwrap_or_default()
    }

    /// The id of a message, or of its replay, with its own headers. It follows from the row alone,
    /// and is the same wherever the payload travels: its object holds the id that the row has with
    /// the payload inline.
    pub(crate) fn message_id(&self, headers: &BTreeMap<String, String>) -> String {
        let row = match self.stored_object() {
            Some(object) => object.id.clone(),
            None => {
                let mut fields = self.fields("oncebox message 1", headers);
                fields.add(&self.payload);
                self.id_of(fields, Sending::Message)
            }
        };
        let Some(replay) = self.replay else { return row };
        let mut fields = Fields::new("oncebox replay 1");
        fields.add(row.as_bytes());
        fields.add(&microseconds(replay.requested_at).to_be_bytes());
        self.id_of(fields, Sending::Replay(replay.number.unsigned_abs()))
    }

    /// The fields before the payload.
    fn fields(&self, purpose: &str, headers: &BTreeMap<String, String>) -> Fields {
        let mut fields = Fields::new(purpose);
        fields.add(&self.id.to_be_bytes());
        fields.add(&microseconds(self.created_at).to_be_bytes());
        fields.add(self.subject.as_bytes());
        // An ordering key is never empty.
        fields.add(self.ordering_key.as_deref().unwrap_or_default().as_bytes());
        fields.add_headers(headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        fields
    }

    fn id_of(&self, mut fields: Fields, sending: Sending) -> String {
        fields.add(sending.to_string().as_bytes());
        let id = MessageId { outbox: &self.outbox, digest: fields.digest(), sending, key: &self.key };
        id.to_string()
    }

    /// The id of the row's message, whose payload comes in pieces: the same as if it came whole.
    pub(crate) fn id_of_large(&self) -> Result<IdOfLarge, Failure> {
        let mut fields = self.fields("oncebox message 1", &self.own_headers()?);
        fields.begin(self.payload_bytes);
        Ok(IdOfLarge(fields))
    }

    /// The name of the object that holds the payload: it tells the row, and needs no payload.
    pub(crate) fn object_name(&self) -> Result<String, Failure> {
        let mut fields = self.fields("oncebox object 1", &self.own_headers()?);
        fields.add(self.outbox.as_bytes());
        fields.add(self.key.as_bytes());
        fields.add(&(self.payload_bytes as u64).to_be_bytes());
        let hash: [u8; 32] = fields.0.finalize().into();
        Ok(BASE64_URL_SAFE_NO_PAD.encode(&hash[..18]))
    }
}

/// The id of a message in the making.
pub(crate) struct IdOfLarge(Fields);

impl IdOfLarge {
    pub(crate) fn add(&mut self, piece: &[u8]) {
        self.0.0.update(piece);
    }

    pub(crate) fn finish(self, message: &Message) -> String {
        message.id_of(self.0, Sending::Message)
    }
}

/// The id of a dead letter that goes back to its stream at a time, in microseconds since 1970.
/// `original` is the id that it came with; its key stays readable for inboxes that go by the id.
#[must_use]
pub(crate) fn of_letter(
    outbox: &str,
    at: i64,
    original: &str,
    headers: &BTreeMap<String, Vec<String>>,
    subject: &str,
    payload: &[u8],
) -> String {
    let mut fields = Fields::new("oncebox letter 1");
    fields.add(&at.to_be_bytes());
    fields.add(original.as_bytes());
    fields.add(subject.as_bytes());
    let pairs =
        headers.iter().flat_map(|(name, values)| values.iter().map(move |v| (name.as_str(), v.as_str())));
    fields.add_headers(pairs);
    fields.add(payload);
    let key = MessageId::parse(original).map_or(original, |id| id.key);
    let sending = Sending::Letter(at.unsigned_abs());
    MessageId { outbox, digest: fields.digest(), sending, key }.to_string()
}

/// A hash of fields, each with its length before it: no two different lists are the same bytes.
struct Fields(Sha256);

impl Fields {
    fn new(purpose: &str) -> Self {
        let mut fields = Self(Sha256::new());
        fields.add(purpose.as_bytes());
        fields
    }

    fn begin(&mut self, bytes: usize) {
        self.0.update((bytes as u64).to_be_bytes());
    }

    fn add(&mut self, field: &[u8]) {
        self.begin(field.len());
        self.0.update(field);
    }

    /// Sorted, because PostgreSQL prints a JSON object in an order of its own.
    fn add_headers<'a>(&mut self, headers: impl Iterator<Item = (&'a str, &'a str)> + Clone) {
        self.add(&(headers.clone().count() as u64).to_be_bytes());
        for (name, value) in headers {
            self.add(name.as_bytes());
            self.add(value.as_bytes());
        }
    }

    fn digest(self) -> Digest {
        let hash: [u8; 32] = self.0.finalize().into();
        Digest::from(*hash.first_chunk().expect("32 bytes begin with 12"))
    }
}

/// The time as PostgreSQL stores it; negative before 1970.
fn microseconds(time: SystemTime) -> i128 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_micros().cast_signed(),
        Err(before) => -before.duration().as_micros().cast_signed(),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, time::Duration};

    use bytes::Bytes;

    use super::*;
    use crate::delivery::message::{Object, Replay};

    fn id(message: &Message) -> String {
        message.message_id(&message.own_headers().unwrap())
    }

    #[test]
    fn the_id_is_what_it_always_was() {
        assert_eq!(id(&Message::example()), "0123456789ab/7n4vOculZphdeuSz/0/a:pay");
    }

    #[test]
    fn the_order_and_spelling_of_headers_make_no_difference() {
        let with = |headers: &str| id(&Message { headers: Some(headers.into()), ..Message::example() });
        assert_eq!(with(r#"{"a": "1", "bb": "\u0032"}"#), with(r#"{"bb":"2","a":"1"}"#));
    }

    /// Receipts, and questions to streams, name a message as it was published.
    #[test]
    fn a_payload_in_a_bucket_changes_no_id() {
        let row = Message::example();
        let replay = |number| Message {
            replay: Some(Replay { number, requested_at: row.created_at }),
            ..Message::example()
        };
        assert_eq!(replay(1).object_name().unwrap(), row.object_name().unwrap());
        let mut ids = HashSet::new();
        for inline in [Message::example(), replay(1), replay(2)] {
            let mut pieces = inline.id_of_large().unwrap();
            pieces.add(b"{");
            pieces.add(b"}");
            let (bucket, name) = ("b".to_owned(), inline.object_name().unwrap());
            let object = Object { bucket, name, digest: "d".to_owned(), id: pieces.finish(&inline) };
            assert_eq!(object.id, id(&row), "a replay may be the one that puts it");
            let sent = id(&inline);
            let beside = Message { payload: Bytes::new(), object: Some(Ok(object)), ..inline };
            let published = beside.wire_headers(None, Some("/shop")).unwrap();
            assert_eq!(published.get("Nats-Msg-Id").map(|id| id.as_str()), Some(sent.as_str()));
            assert_eq!(beside.sent_id(), sent);
            assert!(MessageId::parse(&sent).is_some());
            ids.insert(sent);
        }
        assert_eq!(ids.len(), 3, "{ids:?}");
    }

    #[test]
    fn every_other_row_has_another_id() {
        let example = Message::example;
        let later = example().created_at + Duration::from_micros(1);
        let replay = |number, requested_at| Some(Replay { number, requested_at });
        let headers = |json: &str| Message { headers: Some(json.into()), ..example() };
        let all = [
            example(),
            Message { outbox: "ba9876543210".into(), ..example() },
            Message { id: 8, ..example() },
            Message { created_at: later, ..example() },
            Message { key: "b".into(), ..example() },
            Message { key: "r1/a:pay".into(), ..example() },
            Message { subject: "orders.paid".into(), ..example() },
            Message { ordering_key: Some("c".into()), ..example() },
            Message { payload: Bytes::from_static(b"{ }"), ..example() },
            headers(r#"{"a": "bc"}"#),
            headers(r#"{"ab": "c"}"#),
            headers(r#"{"a": "b", "c": ""}"#),
            Message { replay: replay(1, later), ..example() },
            Message { replay: replay(1, later + Duration::from_micros(1)), ..example() },
            Message { replay: replay(2, later), ..example() },
        ];
        let ids: HashSet<String> = all.iter().map(id).collect();
        assert_eq!(ids.len(), all.len(), "{ids:#?}");
        assert!(ids.iter().all(|id| MessageId::parse(id).is_some()));
    }
}
