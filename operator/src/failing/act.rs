//! Retrying and burying messages that fail. The message itself is in its stream: an inbox keeps
//! only how it failed.

use std::{
    error::Error,
    time::{Duration, SystemTime},
};

use async_nats::jetstream::message::StreamMessage;
use oncebox_connect::{config::Config, error::RelayError, postgres::Parameter};
use oncebox_relay::facts::Letter;
use serde::Serialize;

use super::{FailingMessage, Place};
use crate::{
    Operator, execute, failed, query,
    resend::{Payload, Resender, headers_json},
    selection::FailingSelection,
    shown::RowSet,
};

/// A client may have rounded the time at which a stream stored a message, to seconds at most. No
/// stream is made again, and has as many messages, within that, and one of them fails.
const ROUNDED: Duration = Duration::from_secs(1);

/// How many messages a command has dealt with, and how many it has left alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FailingDone {
    /// Retried, or buried.
    pub done: u64,
    /// Left alone: due already, or at work.
    pub busy: u64,
    /// Not in their stream any more: nobody delivers them again. A burial forgets them.
    pub gone: u64,
    /// They came from no stream, so nobody can fetch them.
    pub elsewhere: u64,
    /// Left alone: their large payload is not in its bucket, and without it nobody can tell copies
    /// of the key from other messages.
    pub incomplete: u64,
}

impl FailingDone {
    /// Of any fate.
    #[must_use]
    pub fn all(self) -> u64 {
        self.done + self.busy + self.gone + self.elsewhere + self.incomplete
    }
}

/// The fate of one message.
enum Fate {
    Done,
    Busy,
    Gone,
    Elsewhere,
    Incomplete,
    /// It has ended meanwhile.
    Ended,
}

/// The action of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Retry,
    Bury,
}

impl Operator {
    /// Has failing messages run again now, `limit` keys at most: of each key a copy of one message,
    /// at the end of its stream, with the same key, headers and payload. Of the two the first one
    /// that succeeds counts; the inbox answers the other as a duplicate, as do the inboxes of other
    /// scopes. A key whose message is due already is left alone, so it gets one copy for each time
    /// that it fails. `only` leaves out all keys but those of a set that was shown.
    ///
    /// # Errors
    /// PostgreSQL or NATS refused or went away: the messages so far are retried, and the same call
    /// goes on with the rest.
    pub async fn retry_failing(
        &mut self,
        config: &Config,
        selection: &FailingSelection,
        limit: Option<u64>,
        only: Option<&RowSet>,
    ) -> Result<FailingDone, RelayError> {
        self.act_on_failing(config, selection, limit, only, Act::Retry).await
    }

    /// Gives failing messages up, `limit` keys at most: each becomes a dead letter of its inbox,
    /// whole, and copies of it are answered as dead. One that its stream has no more is forgotten.
    /// `only` leaves out all keys but those of a set that was shown.
    ///
    /// # Errors
    /// PostgreSQL or NATS refused or went away: the messages so far are buried, and the same call
    /// goes on with the rest.
    pub async fn bury_failing(
        &mut self,
        config: &Config,
        selection: &FailingSelection,
        limit: Option<u64>,
        only: Option<&RowSet>,
    ) -> Result<FailingDone, RelayError> {
        self.act_on_failing(config, selection, limit, only, Act::Bury).await
    }

    /// Adds the keys of failing messages to a set, up to `limit`, and counts them; with `to_retry`,
    /// those that are due already are busy.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn count_failing(
        &self,
        selection: &FailingSelection,
        limit: Option<u64>,
        to_retry: bool,
        set: &mut RowSet,
    ) -> Result<FailingDone, RelayError> {
        let (mut found, mut page) = (FailingDone::default(), Some(Place(selection.after.clone())));
        let limit = limit.unwrap_or(u64::MAX);
        while let Some(after) = page.filter(|_| found.all() < limit) {
            let (messages, next) = self.look_at_failing(&after, selection).await?;
            for message in messages {
                if found.all() == limit {
                    break;
                }
                set.add(&name(&message), message.first_at);
                if set.has(&name(&message)) {
                    let is_busy = to_retry && message.is_due;
                    *(if is_busy { &mut found.busy } else { &mut found.done }) += 1;
                }
            }
            page = next;
        }
        Ok(found)
    }

    async fn act_on_failing(
        &mut self,
        config: &Config,
        selection: &FailingSelection,
        limit: Option<u64>,
        only: Option<&RowSet>,
        act: Act,
    ) -> Result<FailingDone, RelayError> {
        let resender = Resender::connect(config).await?;
        let (mut found, mut page) = (FailingDone::default(), Some(Place(selection.after.clone())));
        let limit = limit.unwrap_or(u64::MAX);
        while let Some(after) = page.filter(|_| found.all() < limit) {
            let (messages, next) = self.look_at_failing(&after, selection).await?;
            for message in messages {
                if found.all() == limit {
                    return Ok(found);
                }
                if only.is_some_and(|only| !only.has(&name(&message))) {
                    continue;
                }
                match self.act_on_one(&resender, &message, act).await? {
                    Fate::Done => {
                        found.done += 1;
                        self.pace.did(1).await;
                    }
                    Fate::Busy => found.busy += 1,
                    Fate::Gone => {
                        found.gone += 1;
                        self.pace.did(1).await;
                    }
                    Fate::Elsewhere => found.elsewhere += 1,
                    Fate::Incomplete => found.incomplete += 1,
                    Fate::Ended => {}
                }
            }
            page = next;
        }
        Ok(found)
    }

    async fn act_on_one(
        &mut self,
        resender: &Resender,
        message: &FailingMessage,
        act: Act,
    ) -> Result<Fate, RelayError> {
        if act == Act::Retry && message.is_due {
            return Ok(Fate::Busy);
        }
        let Some((stream, sequence)) = message.stream.as_deref().zip(message.stream_sequence) else {
            return Ok(Fate::Elsewhere);
        };
        let stored = resender.stored(stream, sequence.cast_unsigned()).await;
        let stored = stored.map_err(|problem| refused(&message.key, problem))?;
        // A stream that was made again counts from 1 again.
        let at =
            |stored: &StreamMessage| SystemTime::from(stored.time).duration_since(SystemTime::UNIX_EPOCH);
        let stored = stored.filter(|stored| {
            is_named(&message.message, stream, stored.sequence, at(stored).unwrap_or_default())
        });
        match (stored, act) {
            (Some(stored), Act::Retry) => self.send_copy(resender, message, stored).await,
            (Some(stored), Act::Bury) => self.bury_one(resender, message, stored).await,
            (None, Act::Retry) => Ok(Fate::Gone),
            (None, Act::Bury) => self.forget_one(message).await,
        }
    }

    async fn send_copy(
        &mut self,
        resender: &Resender,
        message: &FailingMessage,
        stored: StreamMessage,
    ) -> Result<Fate, RelayError> {
        let (stamp, sql) = (self.stamp.clone(), self.sql.retry_failing.clone());
        let FailingMessage { scope, tenant, key, message: copy, .. } = message;
        let transaction = self.begin().await?;
        let parameters: [&dyn Parameter; 6] = [scope, tenant, key, copy, &stamp.operator, &stamp.note];
        let rows = query(&transaction, "retry a failing message", &sql, &parameters).await?;
        let Some(row) = rows.first() else { return Ok(Fate::Busy) };
        let copy = Letter {
            outbox: row.get("outbox"),
            key: Some(key.clone()),
            subject: stored.subject.to_string(),
            headers: headers_json(&stored.headers),
            payload: stored.payload.to_vec(),
            number: row.get("number"),
        };
        resender.publish(copy).await.map_err(|problem| refused(key, problem))?;
        transaction.commit().await.map_err(failed("commit"))?;
        Ok(Fate::Done)
    }

    async fn bury_one(
        &mut self,
        resender: &Resender,
        message: &FailingMessage,
        stored: StreamMessage,
    ) -> Result<Fate, RelayError> {
        let (stamp, sql) = (self.stamp.clone(), self.sql.bury_failing.clone());
        let FailingMessage { scope, tenant, key, stream, stream_sequence, failures, reason, .. } = message;
        // The whole one tells copies of the key from other messages.
        let payload = resender.payload(&stored).await.map_err(|problem| refused(key, problem))?;
        let (payload, is_incomplete) = match payload {
            Payload::Whole(payload) => (payload, false),
            Payload::Gone => (Vec::new(), true),
        };
        let subject = stored.subject.to_string();
        let (headers, stored_at) = (headers_json(&stored.headers), SystemTime::from(stored.time));
        let transaction = self.begin().await?;
        let parameters: [&dyn Parameter; 14] = [
            scope,
            tenant,
            key,
            &payload,
            &subject,
            &headers,
            stream,
            stream_sequence,
            &stored_at,
            failures,
            reason,
            &stamp.operator,
            &stamp.note,
            &is_incomplete,
        ];
        let rows = query(&transaction, "bury a failing message", &sql, &parameters).await?;
        transaction.commit().await.map_err(failed("commit"))?;
        Ok(match rows.first().map(|row| row.get::<_, &str>("answer")) {
            Some("dead") => Fate::Done,
            Some("in_flight") => Fate::Busy,
            Some("incomplete") => Fate::Incomplete,
            _ => Fate::Ended,
        })
    }

    async fn forget_one(&mut self, message: &FailingMessage) -> Result<Fate, RelayError> {
        let (stamp, sql) = (self.stamp.clone(), self.sql.forget_failing.clone());
        let FailingMessage { scope, tenant, key, message: copy, .. } = message;
        let transaction = self.begin().await?;
        let parameters: [&dyn Parameter; 6] = [scope, tenant, key, copy, &stamp.operator, &stamp.note];
        execute(&transaction, "forget a failing message", &sql, &parameters).await?;
        transaction.commit().await.map_err(failed("commit"))?;
        Ok(Fate::Gone)
    }
}

fn refused(key: &str, source: Box<dyn Error + Send + Sync>) -> RelayError {
    RelayError::Failing { key: key.to_owned(), source }
}

/// A key's name in a set.
fn name(message: &FailingMessage) -> String {
    message.place().join("\0")
}

/// Whether inboxes name a copy by this place in its stream, and this time: `inbox/src/records.rs`.
fn is_named(name: &str, stream: &str, sequence: u64, stored_at: Duration) -> bool {
    let near = |micros: u128| micros.abs_diff(stored_at.as_micros()) <= ROUNDED.as_micros();
    name.rsplit_once(' ').is_some_and(|(place, micros)| {
        place == format!("{stream} {sequence}") && micros.parse().is_ok_and(near)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_known_by_its_place_and_about_its_time() {
        let at = Duration::from_nanos(1_700_000_000_972_982_713);
        for name in
            ["S 7 1700000000972982", "S 7 1700000000972983", "S 7 1700000000972000", "S 7 1700000000000000"]
        {
            assert!(is_named(name, "S", 7, at), "{name}");
        }
        for name in
            ["S 7 1699999999972900", "S 8 1700000000972982", "T 7 1700000000972982", "S 7", "S 7 ", ""]
        {
            assert!(!is_named(name, "S", 7, at), "{name}");
        }
    }
}
