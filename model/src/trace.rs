//! Recordings of real relays (`--trace-file`), held to the specification.
//!
//! The checker takes the recordings of all relays of an outbox and the ledger that the database
//! keeps, and replays pass after pass: the cursor that a pass claimed must be one that an earlier
//! settlement wrote, its read must be the rows that were due, and its settlement must be the one of
//! the relay's own `Cursor::advance`, over rows that streams acknowledged.

mod check;
mod consumers;
mod effects;
mod kept;
mod keys;
mod ledger;
mod line;
mod numbered;
mod passes;
mod sagas;
mod step;

use std::{collections::BTreeMap, fmt};

pub use self::{
    kept::{check_kept, keep, minimised},
    keys::Keys,
    ledger::Ledger,
    passes::Passes,
    step::Steps,
};

/// The query that makes a ledger, a line for each of its rows.
pub const LEDGER: &str = include_str!("trace/ledger.sql");

/// The query that makes the ledger of consumers, a line for each of its rows.
pub const KEYS: &str = include_str!("trace/keys.sql");

/// A rule that recordings must obey.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// No line is missing or unreadable.
    Complete,
    /// Each action that the specification knows has happened.
    Vacuous,
    /// A claimed cursor is the one that the settlement before it wrote.
    Chain,
    /// Two passes do not settle the same cursor.
    Once,
    /// A pass reads only committed messages.
    Committed,
    /// A pass reads the messages that are due, and leaves out none.
    Due,
    /// A message is settled only if a stream acknowledged it, or it is set aside.
    Acknowledged,
    /// A cursor passes no message of a transaction that was open when it was read.
    Open,
    /// A settlement is the one of `Cursor::advance`.
    Advance,
    /// Messages of an ordering key reach the stream in their order.
    Order,
    /// In the end everything committed is acknowledged or set aside, and settled.
    Delivered,
    /// A commit ends a key that its transaction, or its lease, has claimed; it sets a message aside
    /// that has no key, or whose key has another payload.
    Claimed,
    /// A key that has ended was ended by one recorded commit, and each commit with an answer is
    /// there.
    Ended,
    /// An effect belongs to the end of its key, is recorded before it is called, and happens once.
    Effect,
    /// Nothing is written under a lease that another owner has.
    Fence,
    /// A message is acknowledged after a commit whose answer came, or when its key is known to have
    /// ended.
    Answered,
    /// A copy is answered as the first one was.
    Replayed,
    /// A change of a saga is the one of the state machine.
    Decided,
    /// Each revision of a saga was written by a recorded change of the one before.
    Revision,
    /// A command is sent once, and a step is undone only if it was sent.
    Undone,
    /// Nothing changes a saga that has ended.
    Over,
}

/// The verdict over recordings.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// How often each action occurred.
    pub actions: BTreeMap<&'static str, usize>,
    /// The first violations of each rule, and how many there are.
    pub broken: BTreeMap<Rule, (usize, Vec<String>)>,
}

/// The examples of each rule that are kept.
const EXAMPLES: usize = 3;

impl Verdict {
    pub fn is_right(&self) -> bool {
        self.broken.is_empty()
    }

    fn breaks(&mut self, rule: Rule, example: impl fmt::Display) {
        let (count, examples) = self.broken.entry(rule).or_default();
        *count += 1;
        if examples.len() < EXAMPLES {
            examples.push(example.to_string());
        }
    }

    fn saw(&mut self, action: &'static str, times: usize) {
        *self.actions.entry(action).or_default() += times;
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let actions: Vec<String> =
            self.actions.iter().map(|(name, times)| format!("{times} {name}")).collect();
        write!(f, "{}", actions.join(", "))?;
        for (rule, (count, examples)) in &self.broken {
            write!(f, "\nbroken: {rule:?}, {count} times, such as: {}", examples.join("; "))?;
        }
        Ok(())
    }
}

/// The circumstances of a recording.
#[derive(Clone, Copy, Debug, Default)]
pub struct Circumstances {
    /// PostgreSQL crashed, and may have forgotten the last settlements: relays do not wait for the
    /// disk.
    pub postgres_crashed: bool,
    /// A stream lost its end, and operators or relays had lanes sent again: sequences say nothing
    /// of the order any more.
    pub stream_lost: bool,
    /// Actions that have to occur beside the usual ones.
    pub expected: &'static [&'static str],
}

/// Checks recordings of all consumers of a database; the expected actions have to occur beside the
/// usual ones.
pub fn check_consumers(ledger: &Keys, steps: &Steps, expected: &[&'static str]) -> Verdict {
    consumers::check(ledger, steps, expected)
}

/// Checks recordings of all relays of an outbox.
pub fn check(ledger: &Ledger, passes: &Passes, of: Circumstances) -> Verdict {
    check::check(ledger, passes, of)
}
