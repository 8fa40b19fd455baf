//! A process that is killed, suspended, cut off from PostgreSQL, and started again.

use std::{ops::AddAssign, time::Duration};

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use oncebox_tests::{Program, Proxy};
use tokio::time::{Instant, sleep};

/// The pause between two faults of one process, in milliseconds.
const PAUSE: std::ops::Range<u64> = 200..2_500;
/// How long a killed process stays away, in milliseconds.
const ABSENCE: std::ops::Range<u64> = 0..800;
/// The limit for a process that ends at every start: hours beside another program that harms the
/// servers.
const RETRIES_MAX: u32 = 2_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Relay,
    Each,
    Batch,
    Cashier,
    Sagas,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] = [Self::Relay, Self::Each, Self::Batch, Self::Cashier, Self::Sagas];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Relay => "relays",
            Self::Each => "transactional consumers",
            Self::Batch => "consumers in batches",
            Self::Cashier => "cashiers under leases",
            Self::Sagas => "orchestrators of sagas",
        }
    }
}

/// The faults that a process has had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Harm {
    pub(crate) kills: u32,
    pub(crate) pauses: u32,
    /// How often all connections to PostgreSQL were cut, at any moment.
    pub(crate) cuts: u32,
    /// Connections that were cut before PostgreSQL got a COMMIT.
    pub(crate) unsent: u32,
    /// Connections that were cut after PostgreSQL had carried out a COMMIT and before its answer
    /// arrived.
    pub(crate) unanswered: u32,
    /// How often the process ended by itself, because its connection was cut while it started, and
    /// was started again, as systemd would.
    pub(crate) retries: u32,
}

impl AddAssign for Harm {
    fn add_assign(&mut self, other: Self) {
        self.kills += other.kills;
        self.pauses += other.pauses;
        self.cuts += other.cuts;
        self.unsent += other.unsent;
        self.unanswered += other.unanswered;
        self.retries += other.retries;
    }
}

#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) kind: Kind,
    pub(crate) program: Program,
    /// The proxy between the process and PostgreSQL.
    line: Proxy,
    pub(crate) harm: Harm,
    /// Whether PostgreSQL is to get the next COMMIT, at which the connection is cut; `None` when no
    /// cut is planned.
    trap: Option<bool>,
    /// The lease of a cashier: a suspension lasts longer than this.
    lease: Duration,
}

impl Member {
    pub(crate) fn new(kind: Kind, program: Program, line: Proxy, lease: Duration) -> Self {
        Self { kind, program, line, harm: Harm::default(), trap: None, lease }
    }

    /// Causes random faults until then. In the end the process runs.
    pub(crate) async fn suffer(&mut self, until: Instant, mut rng: Rng) -> Result<()> {
        while Instant::now() < until {
            sleep(Duration::from_millis(rng.u64(PAUSE))).await;
            self.revive().await?;
            match rng.u8(..12) {
                0..3 => self.kill(Duration::from_millis(rng.u64(ABSENCE))).await?,
                3..8 => self.cut_at_commit(rng.bool()),
                8 => {
                    self.line.cut();
                    self.harm.cuts += 1;
                }
                // It may have ended by itself a moment ago.
                _ if self.kind == Kind::Cashier && self.program.suspend(true).is_ok() => {
                    sleep(self.lease + Duration::from_millis(rng.u64(500..2_000))).await;
                    self.program.suspend(false).context("continue a cashier")?;
                    self.harm.pauses += 1;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Starts the process again if it has ended by itself.
    pub(crate) async fn revive(&mut self) -> Result<()> {
        let Err(ended) = self.program.check() else { return Ok(()) };
        self.harm.retries += 1;
        ensure!(self.harm.retries < RETRIES_MAX, "{} do not stay up: {ended:#}", self.kind.name());
        self.program.restart().await
    }

    /// Counts the planned cut at a COMMIT, if it has happened.
    pub(crate) fn note_caught(&mut self) {
        if self.line.is_armed() {
            return;
        }
        match self.trap.take() {
            Some(true) => self.harm.unanswered += 1,
            Some(false) => self.harm.unsent += 1,
            None => {}
        }
    }

    fn cut_at_commit(&mut self, is_carried_out: bool) {
        self.note_caught();
        if self.trap.is_none() {
            self.line.cut_when_client_sends(b"COMMIT", is_carried_out);
            self.trap = Some(is_carried_out);
        }
    }

    async fn kill(&mut self, absence: Duration) -> Result<()> {
        // It may have ended by itself a moment ago.
        if self.program.kill().await.is_ok() {
            self.harm.kills += 1;
        }
        sleep(absence).await;
        self.program.restart().await
    }
}
