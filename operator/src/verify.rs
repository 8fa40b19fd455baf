//! Compares the log with a stream, message by message.
//!
//! The stream is read once, from its beginning or from a time on; each message of this outbox is
//! compared with its row of the log, and noted by a bit for its id. Then the log is walked, lane by
//! lane: a message that was settled before the stream was looked at, is settled now, and has no
//! bit, is not in the stream. So the order of the stream does not matter, and memory is two bits
//! for each id. Such a message is missing unless the stream may have let it go:
//! `verify/absence.rs`.

pub(crate) mod absence;
mod findings;
mod id_set;
pub(crate) mod reader;

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use id_set::IdSet;
use oncebox_connect::{config::Config, error::RelayError, postgres::Parameter};
use oncebox_relay::facts::{Content, Copy, any_expression};
use tokio::time::Instant;
use tokio_postgres::Row;
use tracing::info;

pub use self::findings::{AlteredCopy, Difference, UnloggedCopy, VerificationFinding, Verified};
use self::{absence::Absence, reader::Reader};
use super::{BATCH, Operator, Result, rows::query, selection::SubjectPattern, shown::RowSet, time};

/// Unlogged copies that are told; a stream may keep its messages for longer than the log.
const UNLOGGED_TOLD_MAX: u64 = 20;
/// How far before a time the stream is read: clocks differ.
const EARLIER: Duration = Duration::from_secs(600);
/// Between two lines of progress.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// A comparison that is asked for, and whether the relays send the missing messages again.
#[derive(Clone, Debug, Default)]
pub struct Verification {
    /// The stream.
    pub stream: String,
    /// Messages that it should hold; those of its own subjects without this.
    pub subject: Option<SubjectPattern>,
    /// Messages enqueued at this time or later.
    pub since: Option<SystemTime>,
    /// Messages enqueued before this time.
    pub until: Option<SystemTime>,
    /// Has the relays send missing and different messages again.
    pub resend: bool,
}

/// A comparison under way.
struct Comparison<'a> {
    reader: Reader,
    asked: &'a Verification,
    outbox: String,
    /// Ids of messages of which the stream holds a copy as the log has it,
    whole: IdSet,
    /// or another one.
    altered: IdSet,
    verified: Verified,
    told_at: Instant,
    /// The set that collects messages in place of their being sent.
    found: Option<&'a mut RowSet>,
}

impl Operator {
    /// Compares the settled messages with those of a stream, and tells of each difference as soon
    /// as it is found. Changes nothing, unless missing and different messages are to be sent again:
    /// each under its id, as a parked message, a batch per transaction. With a set, these are
    /// added to it, and none is sent: [`Operator::send_shown`] does so then.
    ///
    /// # Errors
    /// PostgreSQL or NATS refused or went away, or there is no such stream. The relays send again
    /// the messages that were found to be missing until then.
    pub async fn verify(
        &mut self,
        config: &Config,
        asked: &Verification,
        found: Option<&mut RowSet>,
        mut tell: impl FnMut(&VerificationFinding),
    ) -> Result<Verified> {
        // Before the stream is looked at: the stream should hold each message that is settled now.
        let stands = self.query("read the lanes", &self.sql.verify_stands, &[]).await?;
        let reader = Reader::connect(config, &asked.stream, "oncebox outbox verify").await?;
        let problem =
            |problem: &str| RelayError::Verify { stream: asked.stream.clone(), problem: problem.to_owned() };
        let expression = match &asked.subject {
            Some(pattern) => pattern.expression().to_owned(),
            None if reader.subjects.is_empty() => {
                return Err(problem(
                    "it takes no subjects of its own; say with --subject which it should hold",
                ));
            }
            None => any_expression(&reader.subjects),
        };
        let Some(outbox) = stands.first().map(|row| row.get("outbox")) else {
            return Err(problem("the outbox has no lanes"));
        };
        let adopted_at = stands.first().and_then(|row| row.get::<_, Option<SystemTime>>("adopted_at"));
        if let Some(at) = adopted_at.filter(|at| asked.since.is_none_or(|since| since < *at)) {
            let at = humantime::format_rfc3339_seconds(at);
            info!(
                "this outbox was a copy until {at}: earlier messages are left out, the backlog that came with it too"
            );
        }
        let asked = &Verification { since: asked.since.max(adopted_at), ..asked.clone() };
        let mut comparison = Comparison {
            verified: Verified {
                stream: asked.stream.clone(),
                first_sequence: reader.first,
                last_sequence: reader.last,
                ..Verified::default()
            },
            reader,
            asked,
            outbox,
            whole: IdSet::default(),
            altered: IdSet::default(),
            told_at: Instant::now(),
            found,
        };
        comparison.read_stream(self, &mut tell).await?;
        for lane in &stands {
            comparison.walk_lane(self, lane, &expression, &mut tell).await?;
        }
        Ok(comparison.verified)
    }

    /// Has the relays send again the messages of a set that a comparison has found, a batch per
    /// transaction; returns how many.
    ///
    /// # Errors
    /// PostgreSQL refused or went away: whole batches are sent.
    pub async fn send_shown(&mut self, verified: &Verified, only: &RowSet) -> Result<u64> {
        let mut sent = 0;
        for (lane, ids) in &verified.shown {
            let ids: Vec<i64> = ids.iter().copied().filter(|id| only.has(id)).collect();
            if !ids.is_empty() {
                sent += self.send_again(*lane, &ids, &verified.stream).await?;
            }
        }
        Ok(sent)
    }

    /// The rows of the log with these keys.
    async fn logged(&mut self, keys: &[String]) -> Result<Vec<Row>> {
        let sql = self.sql.verify_rows.clone();
        let transaction = self.begin().await?;
        query(&transaction, "read messages by their keys", &sql, &[&keys]).await
    }

    /// One batch. Under the locks the statement looks again which messages may be sent.
    async fn send_again(&mut self, lane: i16, ids: &[i64], stream: &str) -> Result<u64> {
        let reason = format!("missing in stream {stream}, or different");
        let parameters: [&dyn Parameter; 3] = [&lane, &ids, &reason];
        let sent = self.change("park what is missing", |sql| &sql.verify_resend, &parameters, true).await?;
        Ok(sent.len() as u64)
    }
}

impl Comparison<'_> {
    fn problem(&self, problem: String) -> RelayError {
        RelayError::Verify { stream: self.asked.stream.clone(), problem }
    }

    async fn read_stream(
        &mut self,
        operator: &mut Operator,
        tell: &mut impl FnMut(&VerificationFinding),
    ) -> Result<()> {
        if let Some(since) = self.asked.since {
            let time = since.checked_sub(EARLIER).unwrap_or(SystemTime::UNIX_EPOCH);
            self.verified.first_sequence =
                self.reader.seek(time).await.map_err(|problem| self.problem(problem))?;
        }
        let from = self.verified.first_sequence;
        let mut next = Some(from).filter(|from| *from <= self.reader.last);
        while let Some(from) = next {
            let page = self.reader.page(from).await.map_err(|problem| self.problem(problem))?;
            next = page.1;
            let copies: Vec<Copy> = page
                .0
                .into_iter()
                .filter_map(|m| Copy::parse(&self.outbox, m.sequence, &m.subject, &m.headers, m.payload))
                .collect();
            let keys: Vec<String> = copies.iter().map(|copy| copy.key.clone()).collect();
            let rows = if keys.is_empty() { Vec::new() } else { operator.logged(&keys).await? };
            // Not by their keys: one may have been used again.
            let rows: HashMap<i64, &Row> = rows.iter().map(|row| (row.get("id"), row)).collect();
            for copy in copies {
                let row = rows.get(&copy.id).filter(|row| row.get::<_, &str>("key") == copy.key);
                match row {
                    Some(row) => self.compare(copy, &content(row), tell).await?,
                    None => {
                        self.verified.unlogged += 1;
                        if self.verified.unlogged <= UNLOGGED_TOLD_MAX {
                            let (sequence, id, key) = (copy.sequence, copy.id, copy.key);
                            let unlogged = UnloggedCopy { problem: "unlogged", sequence, id, key };
                            tell(&VerificationFinding::Unlogged(unlogged));
                        }
                    }
                }
            }
            self.report_progress("reading the stream", "sequence", from, self.reader.last);
        }
        Ok(())
    }

    async fn compare(
        &mut self,
        copy: Copy,
        logged: &Content,
        tell: &mut impl FnMut(&VerificationFinding),
    ) -> Result<()> {
        let mut differs = copy.differs(logged, self.reader.maps_subjects);
        if let Some(object) = &copy.object
            && !self.reader.has_object(object).await.map_err(|problem| self.problem(problem))?
        {
            differs.push("object".to_owned());
        }
        if !differs.is_empty() {
            self.altered.insert(copy.id);
            let Copy { sequence, id, key, .. } = copy;
            tell(&VerificationFinding::Altered(AlteredCopy {
                problem: "altered",
                sequence,
                id,
                key,
                differs,
            }));
        } else if !self.whole.insert(copy.id) && !copy.is_replay {
            self.verified.copies += 1;
        }
        Ok(())
    }

    async fn walk_lane(
        &mut self,
        operator: &mut Operator,
        stands: &Row,
        expression: &str,
        tell: &mut impl FnMut(&VerificationFinding),
    ) -> Result<()> {
        let lane: i16 = stands.get("lane");
        let (floor, high): (i64, i64) = (stands.get("floor"), stands.get("high"));
        let snap: Option<&str> = stands.get("snap");
        let last = floor.max(high);
        let mut after = 0;
        while after < last {
            let sql = operator.sql.verify_log.clone();
            let Verification { since, until, .. } = self.asked;
            let parameters: [&dyn Parameter; 9] =
                [&lane, &after, &floor, &high, &snap, &BATCH, &expression, since, until];
            let transaction = operator.begin().await?;
            let rows = query(&transaction, "read settled messages", &sql, &parameters).await?;
            drop(transaction);
            let mut absent = Vec::new();
            self.verified.parked += rows.iter().filter(|row| row.get("is_parked")).count() as u64;
            for row in rows.iter().filter(|row| row.get("is_expected")) {
                self.verified.messages += 1;
                if self.is_absent(row, tell).await? {
                    absent.push((row.get("id"), time::enqueued_at(row)));
                }
            }
            if self.asked.resend && !absent.is_empty() {
                self.send(operator, lane, absent).await?;
            }
            after = rows.last().map_or(last, |row| row.get("id"));
            self.report_progress("reading the log", "id", after.unsigned_abs(), last.unsigned_abs());
        }
        Ok(())
    }

    /// Sends messages again, or adds them to the set.
    async fn send(
        &mut self,
        operator: &mut Operator,
        lane: i16,
        absent: Vec<(i64, SystemTime)>,
    ) -> Result<()> {
        let ids: Vec<i64> = absent.iter().map(|(id, _)| *id).collect();
        let Some(found) = &mut self.found else {
            self.verified.resent += operator.send_again(lane, &ids, &self.asked.stream).await?;
            return Ok(());
        };
        absent.iter().for_each(|(id, created_at)| found.add(id, *created_at));
        self.verified.resent = found.count();
        self.verified.shown.push((lane, ids));
        Ok(())
    }

    /// Whether a message is missing or different.
    async fn is_absent(&mut self, row: &Row, tell: &mut impl FnMut(&VerificationFinding)) -> Result<bool> {
        let (id, subject, enqueued_at) = (row.get("id"), row.get("subject"), time::enqueued_at(row));
        if self.whole.contains(id) {
            self.verified.superseded += u64::from(self.altered.contains(id));
            return Ok(false);
        }
        let problem = if self.altered.contains(id) {
            self.verified.different += 1;
            "different"
        } else {
            let mut absence = self.reader.lets_go.judge(enqueued_at);
            if absence == Absence::AskSubject {
                let last = self.reader.last_of_subject(subject).await;
                let last = last.map_err(|problem| self.problem(problem))?;
                absence = Absence::with_last_of_subject(enqueued_at, last);
            }
            if absence != Absence::Missing {
                self.verified.unproven += 1;
                return Ok(false);
            }
            self.verified.missing += 1;
            "missing"
        };
        let (key, subject) = (row.get("key"), subject.to_owned());
        tell(&VerificationFinding::Message(Difference {
            problem,
            id,
            key,
            subject,
            enqueued_at: time::Time(enqueued_at),
        }));
        Ok(true)
    }

    fn report_progress(&mut self, doing: &str, unit: &str, at: u64, of: u64) {
        if self.told_at.elapsed() >= TELL_EVERY {
            self.told_at = Instant::now();
            info!("{doing}: {unit} {at} of {of}");
        }
    }
}

fn content(row: &Row) -> Content {
    let headers: Option<&str> = row.get("headers");
    Content {
        subject: row.get("subject"),
        ordering_key: row.get("ordering_key"),
        created_at: time::enqueued_at(row),
        headers: headers.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default(),
        payload: row.get("payload"),
    }
}
