//! A pass of several rounds: while it has all lanes locked, it also reads and publishes messages of
//! the next moment, and settles all of them together.
//!
//! To claim lanes and to settle them costs PostgreSQL several times as much as to read in them, and
//! takes some milliseconds, in which nothing is published. So while messages keep coming, few at a
//! time, only a pass now and then pays for it. Before it reads again, it looks whether any
//! transaction has ended at all, which costs a sixth of reading.
//!
//! | danger | why it does no harm |
//! |---|---|
//! | a transaction that was open at the last round ends with an id below others | a round reads all rows that the snapshot of the one before did not show, in the order of ids |
//! | more comes than a round may hold, or a large payload | the round counts as not read, and the pass ends: the next one reads it |
//! | a message is refused, or NATS says nothing of it | the pass ends, and its lanes are settled as those of any other: set aside, or a prefix |
//! | a message waits for a parked one of its ordering key | it is read as blocked, and the pass ends the same way |
//! | the relay hangs | it holds all lanes until its session is ended, within half a minute |
//! | the relay dies, or PostgreSQL | nothing of the pass is settled, and the messages of [`TIME`] are sent again under the same ids |
//! | rows of another cluster carry ids of transactions that come to pass here | they lie below the floor |
//! | a stream gives out a sequence again | nothing of that stream is settled, of any round |
//! | an operator, or another relay, waits for a lane | for [`TIME`] more at most |

use std::time::Duration;

use tokio::{task::spawn_blocking, time::Instant};

use super::{bounded, claim::Claimed, publish::Published, quiet::LAG, settle::Pass, worker::Worker};
use crate::{
    delivery::{Message, Outcome, Snapshot},
    error::RelayError,
    postgres::{
        Claim, Wanted,
        read::{Come, ReadOn},
    },
};

/// For how long a pass goes on.
const TIME: Duration = Duration::from_millis(250);
const _: () = assert!(TIME.as_millis() < LAG.as_millis(), "a lane in a pass does not lag");
/// A pass in which nothing has come for this time ends: its looks would cost more than another
/// claim.
pub(super) const STILL: Duration = Duration::from_millis(30);
/// The shortest and the longest pause before a look, and the part that it is of the time since
/// something came: a message that comes as late again waits for an eighth of it.
const PAUSE: Duration = Duration::from_micros(400);
const PAUSE_MAX: Duration = Duration::from_millis(3);
const PART: u32 = 4;
/// A timer sleeps for at least this time.
const TICK: Duration = Duration::from_millis(1);
/// A pass ends after this number of rounds that find nothing. A round that finds something makes up
/// for some of them. So it ends soon where other transactions end all the time, and few of them
/// enqueue.
const EMPTY_MAX: u32 = 10;
const MAKES_UP_FOR: u32 = 5;
/// An operator who sets longer pauses between passes wants fewer rounds as well.
const POLL_MAX: Duration = Duration::from_millis(2);
/// A pass with more messages, or more bytes of payloads together, does not go on. All payloads are
/// kept to the end: receipts have the ids of messages, which are digests of them.
const MESSAGES_MAX: usize = 512;
const HELD_MAX: usize = 256 * 1024;
/// Messages of a round, and bytes of each payload: together no more than the unit in which `budget`
/// shares out memory.
const ROUND_MAX: usize = 64;
const BYTES_MAX: usize = 4 * 1024;

impl Worker {
    /// Whether a pass over `lanes_max` lanes has all of them, and may go on.
    fn may_go_on(&self, lanes_max: i64) -> bool {
        lanes_max >= self.shared.store.lanes && self.shared.tuning.poll_min <= POLL_MAX
    }

    /// Makes a pass without a look, since messages keep coming; if it may go on, over all lanes.
    pub(super) async fn pass_on(&mut self, lanes_max: i64) -> Result<Pass, RelayError> {
        let wanted = if self.may_go_on(lanes_max) { Wanted::All } else { Wanted::Due };
        self.pass_over(lanes_max, wanted).await
    }

    /// Claims all lanes, for a pass that may go on with [`Worker::round`]; `None` when they are all
    /// locked, or while NATS is away: then no transaction is open.
    ///
    /// # Errors
    /// As [`Worker::run_once`].
    pub async fn claim_all(&mut self) -> Result<Option<Claimed>, RelayError> {
        self.claim_lanes(self.shared.store.lanes, Wanted::All).await
    }

    /// Publishes the messages that have come into the lanes of a pass since the last round; returns
    /// how many. `None` when there is no further round: the pass does not have all lanes, a message
    /// in it is not stored, or more have come than a round may hold.
    ///
    /// # Errors
    /// As [`Worker::run_once`].
    pub async fn round(&mut self, published: &mut Published) -> Result<Option<usize>, RelayError> {
        let Some(since) = published.goes_on() else { return Ok(None) };
        let limits = ReadOn {
            messages_max: ROUND_MAX.min(MESSAGES_MAX - published.outcomes.len()),
            bytes_max: BYTES_MAX,
            dead_blocks: self.shared.tuning.limits.dead_blocks,
        };
        let Claimed { session, claims, pauses, .. } = &published.claimed;
        let (lanes, floors): (Vec<i16>, Vec<i64>) =
            claims.iter().map(|claim| (claim.lane, claim.cursor.floor)).unzip();
        let reading = session.read_on(&lanes, &floors, &since, limits);
        let Some(mut come) = bounded(reading).await? else { return Ok(None) };
        bounded(session.mark_paused(pauses, &mut come.messages)).await?;
        if let Some(trace) = &self.shared.trace_file {
            trace.read_on(published.claimed.pass, &come.messages, &come.snapshot);
        }
        let count = come.messages.len();
        let outcomes = session.keep_alive(self.send(session, &mut come.messages)).await;
        published.add(come, outcomes);
        self.take_in(published);
        Ok(Some(count))
    }

    /// Makes rounds for a moment, in a pass that began to publish at this time.
    pub(super) async fn go_on(
        &mut self,
        published: &mut Published,
        begun: Instant,
    ) -> Result<(), RelayError> {
        let (mut came, mut last, mut empty_rounds) = (Instant::now(), published.outcomes.len(), 0);
        let mut since = published.goes_on();
        while let Some(seen) = &since
            && empty_rounds < EMPTY_MAX
            && begun.elapsed() < TIME
            && came.elapsed() < STILL
        {
            // Several messages at once say that many come: the next round is to have several, too.
            if last > 1 || bounded(published.claimed.session.look()).await? != *seen {
                let Some(count) = self.round(published).await? else { break };
                (last, since) = (count, published.goes_on());
                empty_rounds =
                    if count == 0 { empty_rounds + 1 } else { empty_rounds.saturating_sub(MAKES_UP_FOR) };
                if count > 0 {
                    came = Instant::now();
                }
                if count == 1 {
                    continue;
                }
            }
            pause(came.elapsed()).await;
        }
        Ok(())
    }
}

/// The pause before the next look, when something last came this time ago.
async fn pause(still: Duration) {
    let pause = (still / PART).clamp(PAUSE, PAUSE_MAX);
    if pause >= TICK {
        tokio::time::sleep(pause).await;
        return;
    }
    // It cannot fail: it neither panics nor is it aborted.
    let _ = spawn_blocking(move || std::thread::sleep(pause)).await;
}

impl Published {
    /// The snapshot of the last round, when another one may follow.
    fn goes_on(&self) -> Option<Snapshot> {
        let claimed = &self.claimed;
        let is_stored = |outcome: &Outcome| matches!(outcome, Outcome::Stored { .. });
        let is_full = |claim: &Claim| {
            let rows = claimed.messages.iter().filter(|message| message.lane == claim.lane);
            claim.is_full(rows, claimed.limits)
        };
        let may_go_on = claimed.has_all
            && self.outcomes.len() < MESSAGES_MAX
            && claimed.messages.iter().map(|message| message.payload.len()).sum::<usize>() < HELD_MAX
            && self.outcomes.iter().all(is_stored)
            && !claimed.claims.iter().any(is_full);
        Snapshot::parse(&claimed.claims.first().filter(|_| may_go_on)?.snapshot)
    }

    /// Takes in another round, which all lanes were read in.
    fn add(&mut self, come: Come, mut outcomes: Vec<Outcome>) {
        outcomes.resize(come.messages.len(), Outcome::Unknown);
        let Come { messages, snapshot } = come;
        self.round = self.outcomes.len();
        self.outcomes.append(&mut outcomes);
        let claimed = &mut self.claimed;
        claimed.messages.extend(messages);
        for claim in &mut claimed.claims {
            claim.snapshot.clone_from(&snapshot);
        }
        if let Some((seen, snapshot)) = claimed.seen.as_mut().zip(Snapshot::parse(&snapshot)) {
            seen.snapshot = snapshot;
        }
    }

    /// The messages of each lane in the order of their ids, as one read would have brought them.
    pub(super) fn in_order(mut self) -> Self {
        if self.round > 0 {
            let messages = std::mem::take(&mut self.claimed.messages);
            let mut all: Vec<(Message, Outcome)> = messages.into_iter().zip(self.outcomes).collect();
            all.sort_by_key(|(message, _)| (message.lane, message.id));
            (self.claimed.messages, self.outcomes) = all.into_iter().unzip();
        }
        self
    }
}
