//! Finds out when a stream has lost acknowledged messages, and has them sent again. The loop around
//! it is `checks`.
//!
//! The essay in `delivery/receipt.rs` has the proof that nothing is lost. Every new connection
//! is checked before the workers get it, since a server that was restarted may have come back with
//! less; and every half minute besides, since a cluster changes its leader without cutting a
//! client. A worker that is given a sequence a second time ends the connection, which leads here
//! too.
//!
//! The relay claims a lane that has lost something as for a pass, and writes its cursor anew as it
//! stood at the newest receipt that the stream can prove. Ordinary passes then send the messages
//! after it, in order and under the same ids. Of two relays that find the same loss, the second one
//! sees that the first has written a cursor since. If it is not plain that sending again is right,
//! the relay only writes the loss down, and `oncebox outbox resend` repairs it.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{StreamExt as _, stream};
use tokio::time::sleep;
use tracing::{error, warn};

use super::missing::{self, Look};
use crate::{
    config::OnLoss,
    delivery::{Evidence, any_expression, is_unseen, receipt::newest_proven, split},
    error::{RelayError, StoreError},
    nats::{Connection, proof::Facts},
    postgres::{
        KnownStream, Store,
        receipts::{Lost, Mark, PAGE, SeenStream},
    },
    telemetry::Metrics,
};

/// Streams that are asked at once. One without a leader takes until the deadline of a question and
/// delays no other.
const CONCURRENT: usize = 16;
/// A new leader may not have applied all that it has: a replicated stream is asked again after this
/// time for messages that it lacks.
const LEADER_PAUSE: Duration = Duration::from_secs(1);
/// Pages of receipts that are looked at on the way back, at most.
const PAGES_MAX: usize = 64;

/// The checks of one relay.
#[derive(Debug)]
pub struct Recovery {
    pub(super) store: Arc<Store>,
    pub(super) connection: Option<Arc<Connection>>,
    on_loss: OnLoss,
    pub(super) metrics: Metrics,
    /// Why streams could not be checked the last time: each reason is logged once.
    pub(super) said: Option<String>,
    /// Losses that were noted so far, by this relay or by another one that was faster.
    pub(super) noted: u64,
}

/// Why a check was not made.
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    #[error(transparent)]
    Postgres(#[from] StoreError),
    #[error("{0}")]
    Nats(String),
}

impl Recovery {
    pub(crate) fn new(
        store: Arc<Store>,
        connection: Option<Arc<Connection>>,
        on_loss: OnLoss,
        metrics: Metrics,
    ) -> Self {
        Self { store, connection, on_loss, metrics, said: None, noted: 0 }
    }

    /// One check of all streams; returns how many losses it found, one for each lane and stream.
    ///
    /// # Errors
    /// PostgreSQL refused or went away.
    pub async fn run_once(&mut self) -> Result<usize, RelayError> {
        match self.check().await {
            Ok(found) => Ok(found),
            Err(Problem::Postgres(error)) => Err(RelayError::store(error)),
            Err(Problem::Nats(problem)) => {
                self.report(problem);
                Ok(0)
            }
        }
    }

    pub(super) async fn check(&mut self) -> Result<usize, Problem> {
        let Some(connection) = self.connection.clone() else { return Ok(0) };
        let doubted = connection.places.doubted();
        let mut streams = self.store.acknowledged().await?;
        // No server can be asked about those.
        streams.retain(|stream| !is_unseen(&stream.name));
        // A server that got a domain later acknowledges under another name.
        let elsewhere: Vec<String> = streams
            .iter()
            .filter_map(|stream| split(&stream.name).0.map(|_| split(&stream.name).1.to_owned()))
            .collect();
        streams.retain(|stream| !elsewhere.contains(&stream.name));
        let looks: Vec<_> = streams.iter().map(|stream| missing::look(&connection, stream)).collect();
        let looks: Vec<_> = stream::iter(looks).buffered(CONCURRENT).collect().await;
        let (mut whole, mut found, mut problem) = (Vec::new(), 0, None);
        for (stream, look) in streams.iter().zip(looks) {
            let handled = match look {
                Ok(None) => Ok(0),
                Ok(Some(look)) if look.is_whole() => {
                    whole.push(seen(stream, &look.facts));
                    Ok(0)
                }
                Ok(Some(look)) => self.handle_again(&connection, stream, look).await,
                Err(text) => Err(Problem::Nats(text)),
            };
            match handled {
                Ok(losses) => {
                    found += losses;
                    connection.places.trust_since(&doubted, &stream.name);
                }
                // The others are checked all the same.
                Err(Problem::Nats(text)) => problem = Some(format!("stream {}: {text}", stream.name)),
                Err(error) => return Err(error),
            }
        }
        // Nothing was settled there yet, so there is nothing to check.
        let is_settled = |name: &str| streams.iter().any(|stream| stream.name == name);
        let unsettled = doubted.keys().filter(|name| !is_settled(name));
        unsettled.for_each(|name| connection.places.trust_since(&doubted, name));
        self.store.saw_streams(&whole).await?;
        self.store.end_resends().await?;
        match problem {
            Some(problem) => Err(Problem::Nats(problem)),
            None => {
                self.said = None;
                Ok(found)
            }
        }
    }

    /// As `handle`, and once more when the stream failed to answer meanwhile, as in
    /// `missing::look`.
    async fn handle_again(
        &mut self,
        connection: &Connection,
        stream: &KnownStream,
        look: Look,
    ) -> Result<usize, Problem> {
        let first = self.handle(connection, stream, look).await;
        let Err(Problem::Nats(_)) = first else { return first };
        let Some(look) = missing::look(connection, stream).await.map_err(Problem::Nats)? else {
            return Ok(0);
        };
        let second = self.handle(connection, stream, look).await;
        if matches!(second, Err(Problem::Nats(_))) && missing::answers(connection, stream).await {
            connection.places.trust(&stream.name);
        }
        second
    }

    /// Writes down the losses of a stream, and has them sent again; returns in how many lanes.
    async fn handle(
        &mut self,
        connection: &Connection,
        stream: &KnownStream,
        mut look: Look,
    ) -> Result<usize, Problem> {
        if look.facts.replicas > 1 {
            sleep(LEADER_PAUSE).await;
            match missing::look(connection, stream).await.map_err(Problem::Nats)? {
                Some(again) => look = again,
                None => return Ok(0),
            }
        }
        let facts = &look.facts;
        let losses = self.losses(connection, stream, &look).await?;
        let seen = seen(stream, facts);
        if !losses.is_empty() {
            // Messages are sent again by the subjects of now.
            let created = stream.created.unwrap_or(facts.created);
            let checked_at = stream.checked_at.unwrap_or(SystemTime::UNIX_EPOCH);
            self.store.saw_streams(&[SeenStream { created, checked_at, ..seen.clone() }]).await?;
        }
        let (mut noted, mut lines) = (0, BTreeMap::new());
        for lost in &losses {
            let resends = self.resends(lost, facts);
            let is_first = self.store.lost(lost, resends).await?;
            self.noted += 1;
            if is_first {
                noted += 1;
                self.metrics.losses.inc();
                let line = lines.entry((lost.kind, resends)).or_insert(Line::default());
                line.lanes += 1;
                line.sequence = line.sequence.max(lost.sequence);
            }
        }
        for ((kind, resends), line) in lines {
            line.tell(&stream.name, kind, resends);
        }
        self.store.saw_streams(&[seen]).await?;
        Ok(noted)
    }

    /// Sending again is plainly right when the end of a stream is missing, also of one that was
    /// restored. It is not for a stream that an operator made anew, perhaps on purpose, nor for a
    /// work queue: its missing messages may have been consumed.
    fn resends(&self, lost: &Lost<'_>, facts: &Facts) -> bool {
        match self.on_loss {
            OnLoss::Auto => matches!(lost.kind, "tail" | "restored") && !facts.deletes_consumed,
            OnLoss::Resend => true,
            OnLoss::Report => false,
        }
    }

    async fn losses<'a>(
        &self,
        connection: &Connection,
        stream: &'a KnownStream,
        look: &Look,
    ) -> Result<Vec<Lost<'a>>, Problem> {
        let lost = |mark: &Mark, kind, proven| Lost {
            lane: mark.lane,
            stream: &stream.name,
            seen: mark.number,
            kind,
            sequence: mark.sequence,
            proven,
        };
        let is_same = !look.has_moved || look.is_same || self.is_known(connection, stream, look).await?;
        if !is_same {
            // Of a work queue whose messages are all consumed, nothing else is left to be seen.
            let highest = stream.marks.iter().map(|mark| mark.sequence).max().unwrap_or(0);
            let goes_on = look.facts.deletes_consumed && look.facts.extent.last >= highest;
            let all = stream.marks.iter().filter(|_| !goes_on || !look.missing.is_empty());
            return Ok(all.map(|mark| lost(mark, "recreated", None)).collect());
        }
        let end = if look.has_moved { "restored" } else { "tail" };
        let mut losses = Vec::new();
        for (lane, oldest) in &look.missing {
            let Some(mark) = stream.marks.iter().find(|mark| mark.lane == *lane) else { continue };
            let proven = self.newest_proven(connection, stream, &look.facts, *lane, *oldest).await?;
            losses.push(lost(mark, if proven.is_some() { end } else { "unproven" }, proven));
        }
        Ok(losses)
    }

    /// Whether a stream that was created at another time has a message that is older than itself,
    /// by the newest receipts of the lanes: then it is the same one, restored.
    async fn is_known(
        &self,
        connection: &Connection,
        stream: &KnownStream,
        look: &Look,
    ) -> Result<bool, Problem> {
        for mark in &stream.marks {
            let page = self.store.older_receipts(mark.lane, &stream.name, mark.number).await?;
            let marks: Vec<&Mark> = page.iter().collect();
            let found = missing::ask(connection, stream, &look.facts, &marks).await.map_err(Problem::Nats)?;
            if found.iter().any(|found| found.is_older) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The number of the newest receipt of a lane, below one that is missing, that the stream can
    /// prove.
    async fn newest_proven(
        &self,
        connection: &Connection,
        stream: &KnownStream,
        facts: &Facts,
        lane: i16,
        mut below: i64,
    ) -> Result<Option<i64>, Problem> {
        for _ in 0..PAGES_MAX {
            let page = self.store.older_receipts(lane, &stream.name, below).await?;
            let marks: Vec<&Mark> = page.iter().collect();
            let found = missing::ask(connection, stream, facts, &marks).await.map_err(Problem::Nats)?;
            let evidence: Vec<Evidence> = found.iter().map(|found| found.evidence).collect();
            if let Some(at) = newest_proven(&evidence) {
                return Ok(Some(page[at].number));
            }
            match page.last() {
                Some(last) if page.len() as i64 >= PAGE => below = last.number,
                _ => return Ok(None),
            }
        }
        Ok(None)
    }
}

/// The record of a stream that has all messages acknowledged before its marks were read.
fn seen<'a>(stream: &'a KnownStream, facts: &Facts) -> SeenStream<'a> {
    SeenStream {
        name: &stream.name,
        created: facts.created,
        subjects: any_expression(&facts.subjects),
        checked_at: stream.read_at,
    }
}

/// The losses of a stream that have one reason and one remedy: a line of the log.
#[derive(Default)]
struct Line {
    lanes: usize,
    /// The highest sequence that the stream had acknowledged.
    sequence: u64,
}

impl Line {
    fn tell(&self, stream: &str, kind: &str, resends: bool) {
        let Self { lanes, sequence } = self;
        if resends {
            warn!(
                stream,
                kind,
                lanes,
                sequence,
                "the stream has lost messages after it had acknowledged them: they are sent again"
            );
        } else {
            error!(
                stream,
                kind,
                lanes,
                sequence,
                "the stream has lost messages after it had acknowledged them: see `oncebox status`, and have them \
                 sent again by `oncebox outbox resend --stream {stream}`"
            );
        }
    }
}
