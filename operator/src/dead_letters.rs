//! Dead letters of inboxes: list, show, retry, discard.

use std::time::SystemTime;

use oncebox_connect::postgres::Parameter;
use oncebox_relay::facts::Letter;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    BATCH, Operator, Result,
    action::{Acting, Done, Listed, Page, Scan, Verb},
    commit, is_selected, next_id,
    payload::{ShownPayload, shown_payload},
    resend::Resender,
    rows::{FromRow, from_row, query},
    selection::{Place, Selection},
    time::Time,
};

/// A message that an inbox gave up, without headers and payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Its number.
    pub id: i64,
    /// Who gave it up: `service:handler`.
    pub scope: String,
    /// Whose it was; empty where there is only one tenant.
    pub tenant: String,
    /// Its key; `None` when it had no valid one.
    pub key: Option<String>,
    /// Its subject.
    pub subject: String,
    /// The stream that it came from.
    pub stream: Option<String>,
    /// Its place there.
    pub stream_sequence: Option<i64>,
    /// How often it had been delivered.
    pub deliveries: i64,
    /// Why it was given up.
    pub reason: String,
    /// When.
    pub died_at: Time,
    /// The size of its payload.
    pub payload_bytes: i64,
    /// The ordering key whose later messages wait for it; `None` for one that holds up nothing.
    pub ordering_key: Option<String>,
    /// How many wait.
    pub behind: Option<i64>,
    /// `KEY came in its place`, where this inbox has handled an edit of it, or is about to: a retry
    /// takes the letter out, and no inbox handles it.
    pub edit: Option<String>,
}

/// Dead letters of one inbox, of the newest 1,000 of all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct DeadLetters {
    /// Who gave them up: `service:handler`.
    pub scope: String,
    /// How many.
    pub letters: i64,
    /// Whether there may be more, among letters that were not looked at.
    pub is_capped: bool,
    /// How many messages of their ordering keys wait for them, 1,000 at most.
    pub behind: i64,
    /// When the newest was.
    pub newest_at: Time,
    /// Why that one was.
    pub reason: String,
}

impl DeadLetters {
    /// How many messages wait for them, as the rest of a sentence.
    pub(super) fn waiting(&self) -> String {
        match self.behind {
            0 => String::new(),
            1 => "; 1 message of their ordering keys waits behind them".to_owned(),
            behind => {
                let at_least = if behind < 1000 { "" } else { "at least " };
                format!("; {at_least}{behind} messages of their ordering keys wait behind them")
            }
        }
    }
}

/// All about one dead letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[non_exhaustive]
pub struct DeadLetterDetails {
    /// The columns of a list.
    #[serde(flatten)]
    pub letter: DeadLetter,
    /// How its key stands in the inbox: `dead`, or with another payload `completed` or `rejected`;
    /// `None` when it is free.
    pub key_status: Option<String>,
    /// When the stream stored it.
    pub stored_at: Option<Time>,
    /// All its headers, a JSON object; a name that occurred more than once has an array.
    pub headers: serde_json::Value,
    /// Its payload, if asked for.
    #[serde(flatten)]
    pub payload: Option<ShownPayload>,
}

impl Operator {
    /// Dead letters of inboxes in the order of their ids, `limit` at most.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn dead_letters(&self, of: &Selection, limit: usize) -> Result<Vec<DeadLetter>> {
        self.list(of, limit, |_| true).await
    }

    /// Reads everything about the dead letter with this id, with up to that number of bytes of its
    /// payload; `None` when there is none.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn dead_letter(
        &self,
        id: i64,
        payload_bytes_max: Option<i32>,
    ) -> Result<Option<DeadLetterDetails>> {
        let rows = self.query("show a dead letter", &self.sql.letter, &[&id, &payload_bytes_max]).await?;
        Ok(rows.first().map(FromRow::from_row))
    }

    /// Sends one letter back and deletes it, or puts it at the head of its line. False when it is
    /// gone already.
    async fn resend_dead_letter(&mut self, resend: &Resender, id: i64) -> Result<bool> {
        let (stamp, sql) = (self.stamp.clone(), self.sql.retry_letter.clone());
        let sql_in_line = self.sql.retry_in_line.clone();
        let transaction = self.begin().await?;
        let parameters: [&dyn Parameter; 3] = [&id, &stamp.operator, &stamp.note];
        let in_line = query(&transaction, "retry a dead letter", &sql_in_line, &parameters).await?;
        if in_line.first().is_some_and(|row| row.get(0)) {
            commit(transaction).await?;
            return Ok(true);
        }
        let rows = query(&transaction, "retry a dead letter", &sql, &parameters).await?;
        let Some(row) = rows.first() else { return Ok(false) };
        resend.send(id, Letter::from_row(row)).await?;
        commit(transaction).await?;
        Ok(true)
    }
}

impl Listed for DeadLetter {
    /// A letter that comes back while an action runs is not retried again and again.
    async fn scans(operator: &Operator, of: &Selection, to_act: bool) -> Result<Vec<Scan>> {
        let mut scan = Scan::from(of);
        if to_act {
            let rows = operator.query("read the last dead letter", &operator.sql.last_letter, &[]).await?;
            scan.last = rows.first().map_or(0, |row| row.get(0));
        }
        Ok(vec![scan])
    }

    async fn page(operator: &Operator, of: &Selection, scan: &Scan) -> Result<Page<Self>> {
        let Selection { id, key, scope, reason_is, subject_is, no_key, .. } = of;
        let (subject, reason, after) = (of.expression(), of.part_of_reason(), scan.after.id());
        let parameters: [&dyn Parameter; 10] =
            [&after, &BATCH, id, key, scope, &subject, &reason, reason_is, subject_is, no_key];
        let rows = operator.query("look at dead letters", &operator.sql.letters, &parameters).await?;
        let next = next_id(&rows).filter(|id| *id < scan.last).map(Place::Id);
        let selected = rows.iter().filter(is_selected).map(Self::from_row);
        Ok(Page::new(selected.filter(|letter| letter.id <= scan.last).collect(), next))
    }

    fn name(&self, _: &Acting<'_>) -> String {
        self.id.to_string()
    }

    fn came_at(&self) -> SystemTime {
        *self.died_at
    }

    /// As begin_canary() says it.
    fn refusal(&self, acting: &Acting<'_>) -> Option<String> {
        (acting.is_canary && self.key.is_none()).then(|| {
            format!(
                "dead letter {} has no key, so its inbox shows no verdict on it; nothing was done. Leave it out of the \
                 selection, or retry without a canary.",
                self.id
            )
        })
    }

    fn in_batches(verb: Verb) -> bool {
        verb != Verb::RetryLetters
    }

    /// A letter that is retried is a new message at the end of its stream, with the same key,
    /// headers and payload. One that messages of its ordering key may wait for is not sent: its
    /// consumer runs it before those. Of a discarded one the key stays settled as dead, and the
    /// messages that waited for it run.
    ///
    /// A letter is gone, and its key free, once JetStream has acknowledged the message. When the
    /// process dies between the two, both the letter and the message are there: the message is
    /// answered from the inbox as dead, and the letter can be retried again. Inboxes of other
    /// scopes that have handled the message answer it as a duplicate.
    async fn change(
        operator: &mut Operator,
        acting: &Acting<'_>,
        rows: &[Self],
        done: &mut Done,
    ) -> Result<()> {
        done.done += match acting.resender {
            Some(resend) if acting.verb == Verb::RetryLetters => {
                let is_done = operator.resend_dead_letter(resend, rows[0].id).await?;
                done.edited += u64::from(is_done && rows[0].edit.is_some());
                u64::from(is_done)
            }
            _ => {
                acting.is_one_of(&[Verb::DiscardLetters])?;
                let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
                let discard = "discard dead letters";
                operator.change(discard, |sql| &sql.discard_letters, &[&ids], false).await?.len() as u64
            }
        };
        Ok(())
    }
}

from_row!(DeadLetter:
    id, scope, tenant, key, subject, stream, stream_sequence, deliveries, reason, payload_bytes, ordering_key,
    behind, edit, died_at = "created_at");
from_row!(DeadLetters: scope, letters, is_capped, behind, newest_at, reason);
from_row!(Letter: outbox, key, subject, headers, payload, number);
from_row!(DeadLetterDetails: key_status, stored_at; row =>
    letter: DeadLetter::from_row(row),
    headers: serde_json::from_str(row.get("headers")).unwrap_or_default(),
    payload: shown_payload(row));
