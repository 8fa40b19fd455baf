//! The bounds of an exhaustive check: which messages there are, how many relays, and how often each
//! fault happens. Within them every order of events is looked at.

/// How often each fault, and each operator's command, may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Faults {
    pub abort: u8,
    pub prepare: u8,
    /// PostgreSQL crashes, with the tail of asynchronous commits.
    pub crash: u8,
    /// The database is dumped, and restored into another cluster.
    pub restore: u8,
    /// The first transaction id of that cluster.
    pub restored_xact: u8,
    /// A relay dies.
    pub die: u8,
    /// A relay hangs until PostgreSQL ends its session, and then goes on.
    pub lose_session: u8,
    /// A publish that is not answered; it may arrive at any time.
    pub doubt: u8,
    pub refuse: u8,
    /// The stream loses its end.
    pub lose_end: u8,
    pub has_lost: bool,
    /// No relay has looked since then.
    pub is_unchecked: bool,
    /// The duplicate window passes.
    pub forget_window: u8,
    /// The retention time passes.
    pub age: u8,
    /// Milestones that are written.
    pub reach: u8,
    pub discard: u8,
    pub replay: u8,
    pub retry_dead: u8,
}

impl Faults {
    pub const NONE: Self = Self {
        abort: 0,
        prepare: 0,
        crash: 0,
        restore: 0,
        restored_xact: 1,
        die: 0,
        lose_session: 0,
        doubt: 0,
        refuse: 0,
        lose_end: 0,
        has_lost: false,
        is_unchecked: false,
        forget_window: 0,
        age: 0,
        reach: 0,
        discard: 0,
        replay: 0,
        retry_dead: 0,
    };
}

/// The bounds of one check.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    pub name: &'static str,
    /// For each message the transaction that enqueues it, and its ordering key.
    pub messages: &'static [(u8, Option<&'static str>)],
    pub relays: u8,
    /// Rows that a pass reads at most.
    pub limit: u8,
    /// Whether dead messages block their ordering key.
    pub dead_blocks: bool,
    pub has_retention: bool,
    /// Only the first receipt of the stream is kept, besides the cursor itself.
    pub has_sparse_receipts: bool,
    pub faults: Faults,
}

const PLAIN: Scope = Scope {
    name: "plain",
    messages: &[],
    relays: 1,
    limit: 2,
    dead_blocks: true,
    has_retention: false,
    has_sparse_receipts: false,
    faults: Faults::NONE,
};

/// Late commits, drains, prefixes, two relays that race, one of which dies or hangs.
pub const CURSOR: Scope = Scope {
    name: "cursor",
    messages: &[(0, Some("a")), (1, Some("a")), (2, None)],
    relays: 2,
    limit: 1,
    faults: Faults { lose_session: 1, doubt: 1, ..Faults::NONE },
    ..PLAIN
};

/// Two relays beside a drain.
pub const RACE: Scope =
    Scope { name: "race", messages: &[(0, None), (1, None), (2, None)], relays: 2, limit: 1, ..PLAIN };

/// A batch that a limit cuts in the middle of late rows; prepared and aborted transactions.
pub const DRAIN: Scope = Scope {
    name: "drain",
    messages: &[(0, None), (0, None), (1, None), (2, None)],
    limit: 1,
    faults: Faults { abort: 1, prepare: 1, doubt: 1, ..Faults::NONE },
    ..PLAIN
};

/// One ordering key, a wider window: which messages are in flight together.
pub const ORDER: Scope = Scope {
    name: "order",
    messages: &[(0, Some("a")), (0, Some("a")), (1, Some("b"))],
    limit: 2,
    relays: 2,
    faults: Faults { lose_session: 1, forget_window: 1, ..Faults::NONE },
    ..PLAIN
};

/// PostgreSQL crashes and takes settlements back.
pub const CRASH: Scope = Scope {
    name: "crash",
    messages: &[(0, Some("a")), (1, Some("a")), (2, None)],
    limit: 2,
    faults: Faults { crash: 1, prepare: 1, ..Faults::NONE },
    ..PLAIN
};

/// The stream loses its end, and gives the sequences out again.
pub const LOSS: Scope = Scope {
    name: "loss",
    messages: &[(0, Some("a")), (1, Some("a")), (2, None)],
    limit: 2,
    faults: Faults { lose_end: 1, ..Faults::NONE },
    ..PLAIN
};

/// Two losses, one after the other.
pub const TWICE: Scope = Scope {
    name: "twice",
    messages: &[(0, None), (1, None)],
    limit: 2,
    faults: Faults { lose_end: 2, ..Faults::NONE },
    ..PLAIN
};

/// Two relays find the same loss.
pub const CHECKS: Scope = Scope {
    name: "checks",
    messages: &[(0, Some("a")), (1, Some("a"))],
    limit: 2,
    relays: 2,
    faults: Faults { lose_end: 1, ..Faults::NONE },
    ..PLAIN
};

/// The same, with few receipts.
pub const LOSSES: Scope = Scope {
    name: "losses",
    messages: &[(0, None), (1, None), (2, None)],
    limit: 1,
    has_sparse_receipts: true,
    faults: Faults { lose_end: 1, ..Faults::NONE },
    ..PLAIN
};

/// Retention beside late commits.
pub const RETENTION: Scope = Scope {
    name: "retention",
    messages: &[(0, None), (1, None), (2, None)],
    limit: 2,
    has_retention: true,
    faults: Faults { age: 1, reach: 2, ..Faults::NONE },
    ..PLAIN
};

/// Retention beside a loss, and a parked message.
pub const KEPT: Scope = Scope {
    name: "kept",
    messages: &[(0, None), (1, None)],
    faults: Faults { lose_end: 1, age: 1, reach: 1, refuse: 1, ..Faults::NONE },
    ..RETENTION
};

/// Refused, parked and dead messages, and operators; a loss among them.
pub const PARKED: Scope = Scope {
    name: "parked",
    messages: &[(0, Some("a")), (1, Some("a"))],
    limit: 2,
    faults: Faults { refuse: 1, discard: 1, doubt: 1, lose_end: 1, ..Faults::NONE },
    ..PLAIN
};

/// Two relays, of which one finds that the cursor has moved; a refusal and a loss.
pub const LEFT_OUT: Scope = Scope {
    name: "left out",
    messages: &[(0, None), (1, None)],
    limit: 2,
    relays: 2,
    faults: Faults { refuse: 1, lose_end: 1, ..Faults::NONE },
    ..PLAIN
};

/// A replay beside a refusal and a loss.
pub const REPLAYED: Scope = Scope {
    name: "replayed",
    faults: Faults { refuse: 1, replay: 1, lose_end: 1, retry_dead: 1, ..Faults::NONE },
    ..PARKED
};

/// Three messages of one ordering key, of which some are refused or in doubt.
pub const BEHIND: Scope = Scope {
    name: "behind",
    messages: &[(0, Some("a")), (0, Some("a")), (1, Some("a"))],
    limit: 2,
    faults: Faults { refuse: 2, doubt: 1, discard: 1, ..Faults::NONE },
    ..PLAIN
};

/// A dump in another cluster, whose transaction ids are lower.
pub const RESTORED: Scope = Scope {
    name: "restored",
    messages: &[(0, None), (1, None), (2, None)],
    limit: 1,
    faults: Faults { restore: 1, restored_xact: 1, doubt: 1, ..Faults::NONE },
    ..PLAIN
};

/// A dump in another cluster, whose transaction ids are higher; then a loss.
pub const RESTORED_AHEAD: Scope = Scope {
    name: "restored ahead",
    messages: &[(0, None), (1, None)],
    limit: 2,
    faults: Faults { restore: 1, restored_xact: 9, lose_end: 1, ..Faults::NONE },
    ..RESTORED
};

/// Milestones of the other cluster.
pub const RESTORED_OLD: Scope = Scope {
    name: "restored old",
    messages: &[(0, None), (1, None)],
    limit: 2,
    has_retention: true,
    faults: Faults { restore: 1, restored_xact: 1, age: 1, reach: 2, ..Faults::NONE },
    ..RESTORED
};

/// Beside a real relay, at random.
pub const LOCKSTEP: Scope = Scope {
    name: "lockstep",
    messages: &[
        (0, None),
        (0, None),
        (1, None),
        (2, None),
        (2, None),
        (3, None),
        (4, None),
        (4, None),
        (5, None),
        (6, None),
        (6, None),
        (7, None),
    ],
    limit: 2,
    faults: Faults { abort: 2, ..Faults::NONE },
    ..PLAIN
};

/// All, as CI checks them.
pub const ALL: [&Scope; 18] = [
    &CURSOR,
    &RACE,
    &DRAIN,
    &ORDER,
    &CRASH,
    &LOSS,
    &TWICE,
    &CHECKS,
    &LOSSES,
    &RETENTION,
    &KEPT,
    &PARKED,
    &LEFT_OUT,
    &REPLAYED,
    &BEHIND,
    &RESTORED,
    &RESTORED_AHEAD,
    &RESTORED_OLD,
];
