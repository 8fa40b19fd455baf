//! PostgreSQL as the outbox sees it: transactions, snapshots, and the tables of one lane. Each
//! function that stands for a statement names its file.
//!
//! Relays' own transaction ids are left out: no row bears one, so that they are only noise in
//! snapshots.

use oncebox_relay::rules;

use crate::bits::{self, Bits};

/// A snapshot as PostgreSQL takes it: transactions that run at or above `xmax` are not listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Snapshot {
    pub(crate) xmax: u8,
    pub(crate) open: Bits,
}

impl Snapshot {
    /// `pg_visible_in_snapshot`.
    pub(crate) fn sees(self, xact: u8) -> bool {
        xact < self.xmax && !bits::has(self.open, xact)
    }

    /// As `pg_snapshot` is written.
    pub(crate) fn text(self) -> String {
        let open: Vec<u8> = bits::each(self.open).collect();
        let xmin = open.first().copied().unwrap_or(self.xmax);
        let open: Vec<String> = open.iter().map(ToString::to_string).collect();
        format!("{xmin}:{}:{}", self.xmax, open.join(","))
    }

    /// Through the relay's own parser.
    pub(crate) fn parse(text: &str) -> Self {
        let read = rules::Snapshot::parse(text).expect("the model wrote it");
        let small = |xact: u64| u8::try_from(xact).expect("the model's ids are small");
        let open = read.open().iter().fold(0, |open, xact| bits::with(open, small(*xact)));
        Self { xmax: small(read.xmax()), open }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Fate {
    #[default]
    NotBegun,
    Open,
    Prepared,
    Committed,
    Aborted,
}

/// A producer's transaction: its id, and the messages that it has enqueued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Transaction {
    pub(crate) fate: Fate,
    pub(crate) xact: u8,
    pub(crate) enqueued: Bits,
}

/// A row of the log. `xact` is the column, which a dump carries to another cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    pub(crate) message: u8,
    pub(crate) id: u8,
    pub(crate) xact: u8,
}

/// The cursor of the lane, with the mark of the stream: a sequence and the sending there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Cursor {
    pub(crate) cluster: u8,
    pub(crate) number: u8,
    pub(crate) floor: u8,
    pub(crate) high: u8,
    pub(crate) snap: Snapshot,
    pub(crate) target: Option<Snapshot>,
    pub(crate) after: Option<u8>,
    pub(crate) reset_until: Option<u8>,
    pub(crate) mark: Option<(u8, u8)>,
}

impl Cursor {
    /// Whether the row is settled, in the words of the essay in `cursor.rs`.
    pub(crate) fn calls_settled(&self, row: Row) -> bool {
        row.id <= self.floor
            || row.id <= self.high
                && (self.snap.sees(row.xact)
                    || self.target.is_some_and(|target| target.sees(row.xact))
                        && self.after.is_some_and(|after| row.id <= after))
    }
}

/// A receipt; `mark` is `None` when the stream had acknowledged nothing yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Receipt {
    pub(crate) number: u8,
    pub(crate) mark: Option<(u8, u8)>,
    pub(crate) floor: u8,
    pub(crate) high: u8,
    pub(crate) snap: Snapshot,
}

/// A parked message that a stream stored later, or a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LateReceipt {
    pub(crate) message: u8,
    pub(crate) is_replay: bool,
    pub(crate) sequence: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Parked {
    pub(crate) message: u8,
    pub(crate) id: u8,
    pub(crate) is_due: bool,
    pub(crate) is_dead: bool,
    pub(crate) is_replay: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Milestone {
    pub(crate) number: u8,
    pub(crate) floor: u8,
    pub(crate) high: u8,
    pub(crate) snap: Snapshot,
    /// It is older than the retention time.
    pub(crate) is_old: bool,
}

/// A loss that was found; `number` is the cursor's that was written then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Loss {
    pub(crate) number: u8,
    pub(crate) proven: Option<u8>,
    pub(crate) sequence: u8,
    pub(crate) floor: u8,
    pub(crate) high: u8,
    pub(crate) snap: Snapshot,
    /// Where the lane stood when it was rewound; `None` as long as nothing is sent again.
    pub(crate) until: Option<Cursor>,
    pub(crate) has_ended: bool,
}

/// The whole database. A crash brings back an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Database {
    pub(crate) cluster: u8,
    pub(crate) next_xact: u8,
    /// One above the highest transaction that has ended.
    pub(crate) ended: u8,
    pub(crate) next_id: u8,
    pub(crate) transactions: Vec<Transaction>,
    pub(crate) log: Vec<Row>,
    pub(crate) cursor: Cursor,
    pub(crate) receipts: Vec<Receipt>,
    pub(crate) late_receipts: Vec<LateReceipt>,
    pub(crate) parked: Vec<Parked>,
    pub(crate) milestones: Vec<Milestone>,
    pub(crate) losses: Vec<Loss>,
    pub(crate) discarded: Bits,
    pub(crate) replayed: Bits,
    pub(crate) deleted: Bits,
}

impl Database {
    /// `pg_current_snapshot()`.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let open = self.running().filter(|of| of.xact < self.ended);
        Snapshot { xmax: self.ended, open: open.fold(0, |open, of| bits::with(open, of.xact)) }
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = &Transaction> {
        self.transactions.iter().filter(|of| matches!(of.fate, Fate::Open | Fate::Prepared))
    }

    /// Rows that a statement sees. PostgreSQL goes by `xmin`, not by the column `xact`.
    /// The ids of running transactions belong to this cluster.
    pub(crate) fn visible(&self) -> impl Iterator<Item = Row> {
        self.log.iter().copied().filter(|row| !self.is_running(row.message))
    }

    fn is_running(&self, message: u8) -> bool {
        self.running().any(|of| bits::has(of.enqueued, message))
    }

    pub(crate) fn row(&self, message: u8) -> Option<Row> {
        self.visible().find(|row| row.message == message)
    }

    pub(crate) fn parked(&self, message: u8) -> Option<&Parked> {
        self.parked.iter().find(|parked| parked.message == message)
    }

    /// A transaction ends.
    pub(crate) fn end(&mut self, transaction: usize, fate: Fate) {
        let of = &mut self.transactions[transaction];
        of.fate = fate;
        self.ended = self.ended.max(of.xact + 1);
        if fate == Fate::Aborted {
            let aborted = of.enqueued;
            self.log.retain(|row| !bits::has(aborted, row.message));
        }
    }

    /// Recovery by the write-ahead log: open transactions are gone, prepared ones stay.
    pub(crate) fn recover(&mut self) {
        for transaction in 0..self.transactions.len() {
            if self.transactions[transaction].fate == Fate::Open {
                self.end(transaction, Fate::Aborted);
                // The producer tries it again.
                self.transactions[transaction] = Transaction::default();
            }
        }
    }

    /// A dump of now, restored into another cluster, whose transaction ids begin elsewhere.
    pub(crate) fn restore(&mut self, next_xact: u8) {
        for transaction in 0..self.transactions.len() {
            if matches!(self.transactions[transaction].fate, Fate::Open | Fate::Prepared) {
                self.end(transaction, Fate::Aborted);
            }
        }
        self.cluster += 1;
        (self.next_xact, self.ended) = (next_xact, next_xact);
    }

    /// Whether the lane's transaction ids come from another cluster (claim.sql, `is_foreign`).
    pub(crate) fn is_foreign(&self) -> bool {
        let cursor = &self.cursor;
        cursor.cluster != self.cluster
            || cursor.reset_until.is_none() && cursor.snap.xmax > self.snapshot().xmax
    }
}
