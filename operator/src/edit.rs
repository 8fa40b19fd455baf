//! Edit: a dead message, or a dead letter, gets other headers or another payload, and is tried
//! again under a key of its own. `0027_edit.sql` has the rules.

mod diff;

use std::{collections::BTreeMap, fmt};

use base64::{Engine as _, prelude::BASE64_URL_SAFE};
use oncebox_connect::{
    config::Config,
    error::{RelayError, StoreError},
    postgres::{Parameter, typed},
};
use oncebox_relay::facts::Letter;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio_postgres::{Row, Transaction};

pub use self::diff::DiffLine;
use super::{Operator, Result, failed, query, resend::Resender, shell::quoted, shown::RowSet};

/// The longest payload that is edited as a text: a longer one is given as a file.
pub const EDITABLE_BYTES_MAX: usize = 256 * 1024;

/// The message or letter to edit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "messages die in the outbox or in an inbox")]
pub enum EditOf {
    /// The dead letter with this id.
    Letter(i64),
    /// The dead message of the outbox with this key.
    Message(String),
}

/// The changes. Their payload and its values never reach a log.
#[derive(Clone, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "these parts are the interface")]
pub struct Edit {
    /// The payload; `None` leaves it as it is.
    pub payload: Option<Vec<u8>>,
    /// Headers that get this value, or are added.
    pub headers: Vec<(String, String)>,
    /// Headers that go.
    pub removed: Vec<String>,
}

impl fmt::Debug for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        let bytes = self.payload.as_ref().map(Vec::len);
        f.debug_struct("Edit")
            .field("payload_bytes", &bytes)
            .field("headers", &names)
            .field("removed", &self.removed)
            .finish()
    }
}

/// The parts of a message that can be edited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct Editable {
    /// Its headers, but those that Oncebox or the broker sets, and those with several values.
    pub headers: BTreeMap<String, String>,
    /// The size of its payload.
    pub payload_bytes: i64,
    /// Its payload, if asked for, and if a form can hold it: text without carriage returns, up to
    /// [`EDITABLE_BYTES_MAX`].
    pub payload: Option<String>,
}

/// An edit as it would be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct EditPreview {
    /// The key that it would have.
    pub key: String,
    /// The headers, old and new, a line for each that is changed.
    pub headers: Vec<DiffLine>,
    /// The size of the payload, before and after.
    pub payload_bytes: [usize; 2],
    /// Its SHA-256, before and after.
    pub payload_sha256: [String; 2],
    /// The lines of the payload that differ, with some around them; none where it is no text, or is
    /// not to be shown.
    pub payload: Vec<DiffLine>,
}

/// A row before and after.
struct Content {
    lane: Option<i16>,
    id: i64,
    seen: Vec<u8>,
    old: BTreeMap<String, Value>,
    old_payload: Vec<u8>,
    headers: BTreeMap<String, Value>,
    payload: Vec<u8>,
}

impl Content {
    fn new(row: &Row, of: &EditOf, edit: &Edit) -> Result<Self> {
        let text: String = row.get("headers");
        let old: BTreeMap<String, Value> = serde_json::from_str(&text)
            .map_err(|_| RelayError::Edit("its headers cannot be read".to_owned()))?;
        let old_payload: Vec<u8> = row.get("payload");
        Ok(Self {
            lane: matches!(of, EditOf::Message(_)).then(|| row.get("lane")),
            id: row.get("id"),
            seen: row.get("seen"),
            headers: changed(&old, edit)?,
            old,
            payload: edit.payload.clone().unwrap_or_else(|| old_payload.clone()),
            old_payload,
        })
    }

    fn headers_text(&self) -> String {
        serde_json::json!(self.headers).to_string()
    }

    /// The row of a dry run: the old and the new message.
    fn shown(&self) -> String {
        let new =
            Sha256::new().chain_update(self.headers_text()).chain_update([0]).chain_update(&self.payload);
        format!("{} {} {}", self.id, hex(&self.seen), hex(&new.finalize()))
    }
}

/// Whether an edit may change a header; the database refuses the others.
fn is_own(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let set = ["idempotency-key", "x-idempotency-key", "ce-id", "ce-dataref"];
    !name.starts_with("nats-") && !name.starts_with("oncebox-") && !set.contains(&&*name)
}

/// The headers after the edit. Names are compared as NATS does not: in upper and lower case.
fn changed(old: &BTreeMap<String, Value>, edit: &Edit) -> Result<BTreeMap<String, Value>> {
    let mut headers = old.clone();
    let known = |headers: &BTreeMap<String, Value>, name: &str| {
        headers.keys().find(|known| known.eq_ignore_ascii_case(name)).cloned()
    };
    for name in &edit.removed {
        let Some(name) = known(&headers, name) else {
            return Err(RelayError::Edit(format!("it has no header {name:?}")));
        };
        headers.remove(&name);
    }
    for (name, value) in &edit.headers {
        let name = known(&headers, name).unwrap_or_else(|| name.clone());
        headers.insert(name, Value::from(value.clone()));
    }
    Ok(headers)
}

impl Operator {
    /// Reads the parts of a message that can be edited.
    ///
    /// # Errors
    /// There is no such message, or PostgreSQL refused or went away.
    pub async fn editable(&self, of: &EditOf, with_payload: bool) -> Result<Editable> {
        let content = self.look_at_edit(of, &Edit::default()).await?;
        let single = |(name, value): (String, Value)| Some((name, value.as_str()?.to_owned()));
        let fits = with_payload
            && content.old_payload.len() <= EDITABLE_BYTES_MAX
            && !content.old_payload.contains(&b'\r');
        Ok(Editable {
            headers: content.old.into_iter().filter(|(name, _)| is_own(name)).filter_map(single).collect(),
            payload_bytes: i64::try_from(content.old_payload.len()).unwrap_or(i64::MAX),
            payload: String::from_utf8(content.old_payload).ok().filter(|_| fits),
        })
    }

    /// Adds the row, and the change that is meant, to a set: its token confirms both.
    ///
    /// # Errors
    /// There is no such row, or PostgreSQL refused or went away.
    pub async fn find_edit(&self, of: &EditOf, edit: &Edit, found: &mut RowSet) -> Result<()> {
        found.add_old(&self.look_at_edit(of, edit).await?.shown());
        Ok(())
    }

    /// Does it all but the commit, and says how it would be. `with_payload` shows the lines of the
    /// payload that differ.
    ///
    /// # Errors
    /// [`RelayError::Edit`] says why it cannot be edited so; PostgreSQL refused or went away.
    pub async fn preview_edit(
        &mut self,
        of: &EditOf,
        edit: &Edit,
        with_payload: bool,
    ) -> Result<EditPreview> {
        let content = self.look_at_edit(of, edit).await?;
        let row = {
            let (transaction, sql, note) = self.begin_edit(of).await?;
            // A dry run needs no reason yet.
            edited(&transaction, &sql, &content, &[None, Some(note.unwrap_or_else(|| "dry run".to_owned()))])
                .await?
        };
        let (old, new) = (&content.old_payload, &content.payload);
        let payload = match with_payload && old.len().max(new.len()) <= EDITABLE_BYTES_MAX {
            true => diff::of_payloads(old, new),
            false => Vec::new(),
        };
        let (before, after) = (measured(&content.old, old), measured(&content.headers, new));
        Ok(EditPreview {
            key: row.get("key"),
            headers: diff::of_headers(&content.old, &content.headers),
            payload_bytes: [before.0, after.0],
            payload_sha256: [before.1, after.1],
            payload,
        })
    }

    /// Edits it, and has it tried again; returns its new key. A dead message becomes due. A letter
    /// is published, or, in a line, run by its consumer. `only` has the row and the change that
    /// were shown.
    ///
    /// # Errors
    /// [`RelayError::Edit`] says why it cannot be edited so, or that another operator has edited
    /// it; PostgreSQL or NATS refused or went away. Nothing was done then.
    pub async fn edit(
        &mut self,
        config: Option<&Config>,
        of: &EditOf,
        edit: &Edit,
        only: Option<&RowSet>,
    ) -> Result<String> {
        let content = self.look_at_edit(of, edit).await?;
        if only.is_some_and(|only| !only.has(&content.shown())) {
            return Err(RelayError::Edit("the message is not the one that was shown".to_owned()));
        }
        let resend = match (of, config) {
            (EditOf::Letter(_), Some(config)) => Some(Resender::connect(config).await?),
            _ => None,
        };
        let (stamp, wake, schema) = (self.stamp.clone(), self.sql.wake.clone(), self.schema.clone());
        let (transaction, sql, _) = self.begin_edit(of).await?;
        let row = edited(&transaction, &sql, &content, &[stamp.operator, stamp.note]).await?;
        let key: String = row.get("key");
        match of {
            EditOf::Letter(id) if !row.get::<_, bool>("is_in_line") => {
                let resend = resend.ok_or_else(|| RelayError::Edit("NATS is not configured".to_owned()))?;
                let letter = Letter {
                    outbox: row.get("outbox"),
                    key: Some(key.clone()),
                    subject: row.get("subject"),
                    headers: row.get("headers"),
                    payload: row.get("payload"),
                    number: row.get("number"),
                };
                resend.send(*id, letter).await?;
            }
            EditOf::Letter(_) => {}
            EditOf::Message(_) => {
                drop(query(&transaction, "wake the relays", &wake, &[&schema.as_str()]).await?)
            }
        }
        transaction.commit().await.map_err(failed("commit"))?;
        Ok(key)
    }

    /// The key that a message has by now, if it was edited since it had this one.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn edited_key(&self, key: &str) -> Result<Option<String>> {
        Ok(self.edited_keys(key).await?.pop().filter(|edited| edited != key))
    }

    /// The keys before and after each edit of a message, the newest last; none where this role may
    /// not read the audit.
    pub(crate) async fn edited_keys(&self, key: &str) -> Result<Vec<String>> {
        let rows = match self.query("look for edits", &self.sql.edits, &[&key]).await {
            Err(RelayError::Denied(_)) => Vec::new(),
            rows => rows?,
        };
        Ok(rows.iter().flat_map(|row| [row.get("key"), row.get("edited")]).collect())
    }

    /// Why no dead message has this key.
    async fn not_dead(&self, key: &str) -> Result<String> {
        let word = quoted(key);
        if let Some(edited) = self.edited_key(key).await? {
            return Ok(format!("the message with the key {key:?} was edited, and its key is {edited:?} now"));
        }
        Ok(match self.show(key, false).await? {
            Some(found) if found.message.replay == 0 => format!(
                "the message with the key {key:?} is {}, and only dead messages are edited: have relays try it now with \
                 `oncebox outbox parked retry --key {word}`, or give it up with `oncebox outbox parked discard --key \
                 {word}` and enqueue the right message under another key",
                found.message.state
            ),
            _ => format!("no dead message has the key {key:?}; see `oncebox trace {word}`"),
        })
    }

    /// Reads the row, and changes it in memory.
    async fn look_at_edit(&self, of: &EditOf, edit: &Edit) -> Result<Content> {
        let rows = match of {
            EditOf::Letter(id) => {
                self.query("look at a dead letter", &self.sql.look_at_letter, &[id]).await?
            }
            EditOf::Message(key) => {
                self.query("look at a dead message", &self.sql.look_at_dead, &[key]).await?
            }
        };
        let Some(row) = rows.first() else {
            return Err(RelayError::Edit(match of {
                EditOf::Letter(id) => format!("no dead letter has the id {id}"),
                EditOf::Message(key) => self.not_dead(key).await?,
            }));
        };
        Content::new(row, of, edit)
    }

    /// A transaction with the statement that edits, and the note of this operator.
    async fn begin_edit(&mut self, of: &EditOf) -> Result<(Transaction<'_>, String, Option<String>)> {
        let sql = match of {
            EditOf::Letter(_) => self.sql.edit_letter.clone(),
            EditOf::Message(_) => self.sql.edit_dead.clone(),
        };
        let note = self.stamp.note.clone();
        Ok((self.begin().await?, sql, note))
    }
}

/// Runs the statement that edits; a refusal of the schema is told in its words.
async fn edited(
    transaction: &Transaction<'_>,
    sql: &str,
    content: &Content,
    [operator, note]: &[Option<String>; 2],
) -> Result<Row> {
    let (headers, lane) = (content.headers_text(), content.lane.unwrap_or_default());
    let all: [&dyn Parameter; 7] =
        [&lane, &content.id, &headers, &content.payload, &content.seen, operator, note];
    let parameters = &all[usize::from(content.lane.is_none())..];
    transaction.query_typed_one(sql, &typed(parameters)).await.map_err(|error| {
        match error.as_db_error().filter(|refused| refused.code().code().starts_with("OB")) {
            Some(refused) => {
                let hint = refused
                    .hint()
                    .map(|hint| format!(". {}", hint.trim_end_matches('.')))
                    .unwrap_or_default();
                RelayError::Edit(format!("{}{hint}", refused.message()))
            }
            None => RelayError::store(StoreError::Statement("edit", error)),
        }
    })
}

/// Size and SHA-256 of a payload, also of one that stays in its bucket: see `payload_digest`.
fn measured(headers: &BTreeMap<String, Value>, payload: &[u8]) -> (usize, String) {
    let header = |name: &str| {
        let found = headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.and_then(|(_, value)| value.as_str()).filter(|_| payload.is_empty())
    };
    let bytes = header("Oncebox-Object-Bytes").and_then(|bytes| bytes.parse().ok());
    let digest = header("Oncebox-Object-Digest").and_then(|digest| digest.strip_prefix("SHA-256="));
    let digest = digest.and_then(|digest| BASE64_URL_SAFE.decode(digest).ok());
    let digest = digest.unwrap_or_else(|| Sha256::digest(payload).to_vec());
    (bytes.unwrap_or(payload.len()), hex(&digest))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_changes_its_headers_and_shows_no_value() {
        let old = BTreeMap::from([("A".to_owned(), Value::from("1")), ("b".to_owned(), Value::from("2"))]);
        let edit = Edit {
            payload: Some(b"secret".to_vec()),
            headers: vec![("a".to_owned(), "secret".to_owned()), ("c".to_owned(), "3".to_owned())],
            removed: vec!["B".to_owned()],
        };
        let new = changed(&old, &edit).unwrap();
        assert_eq!(serde_json::json!(new).to_string(), r#"{"A":"secret","c":"3"}"#);
        let missing = Edit { removed: vec!["d".to_owned()], ..Edit::default() };
        assert!(changed(&old, &missing).is_err());
        assert!(!format!("{edit:?}").contains("secret"), "{edit:?}");
    }
}
