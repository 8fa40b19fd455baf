//! Where a stream has a message: its sequence and its time.
//!
//! The log does not know the sequence of a message that was stored in passing. Receipts say where
//! it is at the highest, and its own time where at the lowest; between them the stream is read,
//! page by page, within bounds.

use std::{
    collections::HashMap,
    time::{Duration, SystemTime},
};

use oncebox_connect::{config::Config, error::RelayError, postgres::Parameter};
use oncebox_relay::facts::{Copy, sql};
use tokio::time::{Instant, timeout_at};

use crate::{
    Operator, Result, TracedMessage,
    survey::Survey,
    verify::{absence::Absence, reader::Reader},
};

/// Messages that are looked for, and pages that are read for one, at most.
const MESSAGES_MAX: usize = 20;
const PAGES_MAX: usize = 8;
/// As many sequences as these pages have.
const SEQUENCES_MAX: u64 = 8 * 1_024;
/// As far as the clocks of PostgreSQL and NATS may differ.
const SKEW_MAX: Duration = Duration::from_secs(10);

/// Where a stream has a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// There.
    At { stream: String, sequence: u64, at: SystemTime },
    /// Somewhere up to this sequence.
    UpTo { stream: String, sequence: u64 },
    /// It has it no more, and may have let it go.
    LetGo { stream: String },
    /// It has it no more, and should.
    Missing { stream: String },
    /// The question was not answered.
    Unasked { problem: String },
}

/// Looks for settled messages in the streams that take their subjects.
pub(super) async fn find(
    operator: &Operator,
    config: &Config,
    survey: &Survey,
    messages: &[TracedMessage],
    limit: Duration,
) -> Result<HashMap<(i16, i64), Stored>> {
    let deadline = Instant::now() + limit;
    let outbox = operator.query("read who the outbox is", &operator.schema.sql(sql::OUTBOX), &[]).await?;
    let outbox: String = outbox.first().map(|row| row.get(0)).unwrap_or_default();
    let adopted_at = match operator.query("read the lanes", &operator.sql.verify_stands, &[]).await {
        // A relay's role may not read the audit.
        Err(RelayError::Denied(_)) => None,
        stands => stands?.first().and_then(|row| row.get::<_, Option<SystemTime>>("adopted_at")),
    };
    let (mut found, mut readers) = (HashMap::new(), HashMap::new());
    let settled = messages.iter().filter(|message| message.state == "settled");
    for message in settled.take(MESSAGES_MAX) {
        if adopted_at.is_some_and(|at| *message.created_at < at) {
            let problem = "it was settled before this copy became an outbox of its own, under the identity of the original";
            found.insert((message.lane, message.id), Stored::Unasked { problem: problem.to_owned() });
            continue;
        }
        let Some(stream) = survey.streams.iter().find(|stream| stream.takes(&message.subject)) else {
            continue;
        };
        let bound = receipts(operator, message, &stream.name).await?;
        let looking = async {
            if !readers.contains_key(&stream.name) {
                let reader = Reader::connect(config, &stream.name, "oncebox why").await;
                readers.insert(stream.name.clone(), reader.map_err(|error| error.to_string())?);
            }
            look(&readers[&stream.name], &stream.name, &outbox, message, bound).await
        };
        let stored = match timeout_at(deadline, looking).await {
            Ok(Ok(stored)) => stored,
            Ok(Err(problem)) => Stored::Unasked { problem },
            Err(_) => {
                Stored::Unasked { problem: format!("stream {}: no answer within {limit:?}", stream.name) }
            }
        };
        found.insert((message.lane, message.id), stored);
    }
    Ok(found)
}

/// The sequence that receipts say, and whether it is exact.
async fn receipts(operator: &Operator, message: &TracedMessage, stream: &str) -> Result<Option<(u64, bool)>> {
    let parameters: [&dyn Parameter; 3] = [&message.lane, &message.id, &stream];
    let rows = match operator.query("find the receipt", &operator.sql.why_stored, &parameters).await {
        // Receipts only shorten the search.
        Err(RelayError::Denied(_)) => Vec::new(),
        answered => answered?,
    };
    Ok(rows.first().map(|row| (row.get::<_, i64>("sequence").unsigned_abs(), row.get("is_exact"))))
}

async fn look(
    reader: &Reader,
    stream: &str,
    outbox: &str,
    message: &TracedMessage,
    bound: Option<(u64, bool)>,
) -> Result<Stored, String> {
    let name = stream.to_owned();
    let since = message.created_at.checked_sub(SKEW_MAX).unwrap_or(SystemTime::UNIX_EPOCH);
    let first = reader.seek(since).await?;
    let (from, to) = match bound {
        Some((sequence, true)) => (sequence, sequence),
        Some((sequence, false)) => (first.max(sequence.saturating_sub(SEQUENCES_MAX - 1)), sequence),
        None => (first, reader.last),
    };
    let mut next = Some(from).filter(|from| *from <= reader.last.min(to));
    for _ in 0..PAGES_MAX {
        let Some(from) = next else { break };
        let (page, following) = reader.page(from).await?;
        for one in page {
            let (sequence, at) = (one.sequence, SystemTime::from(one.time));
            let copy = Copy::parse(outbox, sequence, &one.subject, &one.headers, one.payload);
            let is_it = |copy: &Copy| copy.id == message.id && copy.key == message.key && !copy.is_replay;
            if copy.is_some_and(|copy| is_it(&copy)) {
                return Ok(Stored::At { stream: name, sequence, at });
            }
        }
        next = following.filter(|following| *following <= to);
    }
    // Not all of the part where it may be was read.
    if next.is_some() || from > first && bound.is_some_and(|(_, is_exact)| !is_exact) {
        return Ok(Stored::UpTo { stream: name, sequence: to });
    }
    let mut absence = reader.lets_go.judge(*message.created_at);
    if absence == Absence::AskSubject {
        let last = reader.last_of_subject(&message.subject).await?;
        absence = Absence::with_last_of_subject(*message.created_at, last);
    }
    Ok(match absence {
        Absence::Missing => Stored::Missing { stream: name },
        _ => Stored::LetGo { stream: name },
    })
}
