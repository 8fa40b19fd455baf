//! Retrying and burying messages that fail. The message itself is in its stream: an inbox keeps
//! only how it failed.

use std::{
    error::Error,
    time::{Duration, SystemTime},
};

use async_nats::jetstream::message::StreamMessage;
use oncebox_connect::{error::RelayError, postgres::Parameter};
use oncebox_relay::facts::Letter;

use super::{FailingMessage, place};
use crate::{
    BATCH, Operator, Result,
    action::{Acting, Done, Listed, Page, Scan, Verb},
    commit, is_full, is_selected,
    resend::{Payload, Resender, headers_json},
    rows::{FromRow as _, query},
    selection::{FailingId, Place, Selection},
};

/// A client may have rounded the time at which a stream stored a message, to seconds at most. No
/// stream is made again, and has as many messages, within that, and one of them fails.
const ROUNDED: Duration = Duration::from_secs(1);

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

impl Listed for FailingMessage {
    async fn page(operator: &Operator, of: &Selection, scan: &Scan) -> Result<Page<Self>> {
        let [scope, tenant, key] = match &scan.after {
            Place::Key(place) => place.clone(),
            _ => Default::default(),
        };
        let (subject, reason) = (of.expression(), of.part_of_reason());
        let Selection { reason_is, subject_is, .. } = of;
        let part = |place: usize| of.failing_id.as_ref().map(|FailingId(id)| id[place].as_str());
        let meant_scope = part(0).or(of.scope.as_deref());
        let meant_tenant = part(1);
        let meant_key = part(2).or(of.key.as_deref());
        let parameters: [&dyn Parameter; 11] = [
            &scope,
            &tenant,
            &key,
            &BATCH,
            &meant_key,
            &meant_scope,
            &subject,
            &reason,
            &meant_tenant,
            reason_is,
            subject_is,
        ];
        let rows = operator.query("look at failing messages", &operator.sql.failing, &parameters).await?;
        let next = rows.last().filter(|_| is_full(&rows)).map(|row| Place::Key(place(row)));
        Ok(Page::new(rows.iter().filter(is_selected).map(Self::from_row).collect(), next))
    }

    fn name(&self, _: &Acting<'_>) -> String {
        [&*self.scope, &*self.tenant, &*self.key].join("\0")
    }

    fn came_at(&self) -> SystemTime {
        self.came_at
    }

    /// So a key gets one copy for each time that it fails.
    fn is_busy(&self, acting: &Acting<'_>) -> bool {
        acting.verb == Verb::RetryFailing && self.is_due
    }

    fn in_batches(_: Verb) -> bool {
        false
    }

    /// A retry publishes a copy at the end of the stream, with the same key, headers and payload.
    /// Of the two the first one that succeeds counts; the inbox answers the other as a duplicate,
    /// as do the inboxes of other scopes. A message that is buried becomes a dead letter of its
    /// inbox, whole, and copies of it are answered as dead. One that its stream has no more is
    /// forgotten.
    async fn change(
        operator: &mut Operator,
        acting: &Acting<'_>,
        rows: &[Self],
        done: &mut Done,
    ) -> Result<()> {
        acting.is_one_of(&[Verb::RetryFailing, Verb::BuryFailing])?;
        for message in rows {
            let count = match operator.act_on_one(acting, message).await? {
                Fate::Done => &mut done.done,
                Fate::Busy => &mut done.busy,
                Fate::Gone => &mut done.gone,
                Fate::Elsewhere => &mut done.elsewhere,
                Fate::Incomplete => &mut done.incomplete,
                Fate::Ended => continue,
            };
            *count += 1;
        }
        Ok(())
    }
}

impl Operator {
    async fn act_on_one(&mut self, acting: &Acting<'_>, message: &FailingMessage) -> Result<Fate> {
        if message.is_busy(acting) {
            return Ok(Fate::Busy);
        }
        let Some(resender) = acting.resender else { return Ok(Fate::Busy) };
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
        match (stored, acting.verb) {
            (Some(stored), Verb::BuryFailing) => self.bury_one(resender, message, stored).await,
            (Some(stored), _) => self.send_copy(resender, message, stored).await,
            (None, Verb::BuryFailing) => self.forget_one(message).await,
            (None, _) => Ok(Fate::Gone),
        }
    }

    async fn send_copy(
        &mut self,
        resender: &Resender,
        message: &FailingMessage,
        stored: StreamMessage,
    ) -> Result<Fate> {
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
        commit(transaction).await?;
        Ok(Fate::Done)
    }

    async fn bury_one(
        &mut self,
        resender: &Resender,
        message: &FailingMessage,
        stored: StreamMessage,
    ) -> Result<Fate> {
        let FailingMessage { scope, tenant, key, stream, stream_sequence, failures, reason, .. } = message;
        // The whole one tells copies of the key from other messages.
        let payload = resender.payload(&stored).await.map_err(|problem| refused(key, problem))?;
        let (payload, is_incomplete) = match payload {
            Payload::Whole(payload) => (payload, false),
            Payload::Gone => (Vec::new(), true),
        };
        let subject = stored.subject.to_string();
        let (headers, stored_at) = (headers_json(&stored.headers), SystemTime::from(stored.time));
        let parameters: [&dyn Parameter; 12] = [
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
            &is_incomplete,
        ];
        let rows = self.change("bury a failing message", |sql| &sql.bury_failing, &parameters, false).await?;
        Ok(match rows.first().map(|row| row.get::<_, &str>("answer")) {
            Some("dead") => Fate::Done,
            Some("in_flight") => Fate::Busy,
            Some("incomplete") => Fate::Incomplete,
            _ => Fate::Ended,
        })
    }

    async fn forget_one(&mut self, message: &FailingMessage) -> Result<Fate> {
        let FailingMessage { scope, tenant, key, message: copy, .. } = message;
        let parameters: [&dyn Parameter; 4] = [scope, tenant, key, copy];
        self.change("forget a failing message", |sql| &sql.forget_failing, &parameters, false).await?;
        Ok(Fate::Gone)
    }
}

fn refused(key: &str, source: Box<dyn Error + Send + Sync>) -> RelayError {
    RelayError::Failing { key: key.to_owned(), source }
}

/// Whether inboxes name a copy by this place in its stream, and this time: `claims/src/records.rs`.
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
