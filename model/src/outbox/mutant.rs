//! Mistakes that a developer has made or could make. A check must reject every one of them, by the
//! promise that it breaks.

use super::{
    promises::{ACKNOWLEDGED, COMMITTED, DELIVERED, DISCARDED, DUE, ORDER, PROVEN},
    scope::{self, Scope},
};

/// A mistake in the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// The relay remembers an id only: rows below it that commit later are never read.
    HighWater,
    /// Late are only the transactions that the snapshot lists as open.
    LateOnlyListed,
    /// Late are only the transactions from `xmax` on.
    LateOnlyAbove,
    /// A batch that a limit cut is taken for all that was late.
    CutReadIsWhole,
    /// A drain ends with the snapshot of now, instead of the one that it drained.
    DrainEndsNow,
    /// New rows are read before late ones.
    NewBeforeLate,
    /// The cursor gets the snapshot of the settlement, instead of the read's.
    SnapshotOfSettlement,
    /// A pass settles messages that it has not sent.
    SettleBeforeAck,
    /// A publish without an answer counts as stored.
    DoubtIsAnswer,
    /// The relay settles as many rows as were answered, instead of the longest prefix.
    CountForPrefix,
    /// All messages of an ordering key are in flight at once.
    AllInFlight,
    /// A refused message lets the next one of its ordering key go.
    FailureFreesNext,
    /// Messages of the log are sent although an earlier one of their ordering key is parked.
    BlockedIsSent,
    /// A parked message that was sent and not answered is forgotten.
    DoubtUnparks,
    /// The messages that waited for a parked one are never freed.
    NobodyIsReleased,
    /// Producers' commits do not wait for the disk, and relays publish them.
    CommitDoesNotWait,
    /// The relay reads rows of open transactions.
    DirtyRead,
    /// A receipt covers one message more than the stream had acknowledged.
    ReceiptOffByOne,
    /// A stream that has any message at a sequence proves it.
    ProbeWithoutId,
    /// A lane's first message in a stream comes without a receipt of the cursor before it.
    NoFirstReceipt,
    /// A lane that is rewound keeps the snapshot of its cursor.
    RewindKeepsSnapshot,
    /// The mark of a lost sequence stays in the cursor.
    MarkOutlivesLoss,
    /// A message that was parked, and stored later, has no receipt of its own.
    NoLateReceipt,
    /// In a lane that is left out of a pass parked messages are sent, and no cursor notes it.
    LeftLaneSendsParked,
    /// A discarded message is sent again with its lane.
    DiscardedIsResent,
    /// A sequence that is given out again is not noticed.
    RegressionIsIgnored,
    /// Milestones above the receipt stay when a lane is rewound.
    MilestonesStay,
    /// Retention goes by the age of messages alone.
    RetentionByAge,
    /// Retention goes by the milestone's id, without its snapshot.
    RetentionByHigh,
    /// Retention goes by the cursor of now, instead of an old milestone.
    RetentionByCursor,
    /// Retention deletes parked messages.
    RetentionOfParked,
    /// A restored dump is not noticed.
    ForeignIsIgnored,
    /// Of a restored dump only the rows up to the cursor count as restored.
    ResetOnlyToHigh,
    /// The rows that were late in the other cluster are forgotten.
    ResetForgetsLate,
}

/// Each with the check that rejects it, and the promise that it breaks.
pub const ALL: &[(Mutant, &Scope, &str)] = &[
    (Mutant::HighWater, &scope::CURSOR, DELIVERED),
    (Mutant::LateOnlyListed, &scope::CURSOR, DELIVERED),
    (Mutant::LateOnlyAbove, &scope::CURSOR, DELIVERED),
    (Mutant::CutReadIsWhole, &scope::DRAIN, DELIVERED),
    (Mutant::DrainEndsNow, &scope::DRAIN, DELIVERED),
    (Mutant::NewBeforeLate, &scope::CURSOR, DELIVERED),
    (Mutant::SnapshotOfSettlement, &scope::CURSOR, ACKNOWLEDGED),
    (Mutant::SettleBeforeAck, &scope::CURSOR, ACKNOWLEDGED),
    (Mutant::DoubtIsAnswer, &scope::CURSOR, ACKNOWLEDGED),
    (Mutant::CountForPrefix, &scope::ORDER, ACKNOWLEDGED),
    (Mutant::AllInFlight, &scope::ORDER, ORDER),
    (Mutant::FailureFreesNext, &scope::PARKED, ORDER),
    (Mutant::BlockedIsSent, &scope::PARKED, ORDER),
    (Mutant::DoubtUnparks, &scope::PARKED, ACKNOWLEDGED),
    (Mutant::NobodyIsReleased, &scope::PARKED, DELIVERED),
    (Mutant::CommitDoesNotWait, &scope::CRASH, COMMITTED),
    (Mutant::DirtyRead, &scope::CURSOR, COMMITTED),
    (Mutant::ReceiptOffByOne, &scope::LOSS, DELIVERED),
    (Mutant::ProbeWithoutId, &scope::LOSS, DELIVERED),
    (Mutant::NoFirstReceipt, &scope::LOSS, PROVEN),
    (Mutant::RewindKeepsSnapshot, &scope::LOSS, DELIVERED),
    (Mutant::MarkOutlivesLoss, &scope::LOSS, DELIVERED),
    (Mutant::NoLateReceipt, &scope::PARKED, DELIVERED),
    (Mutant::LeftLaneSendsParked, &scope::LEFT_OUT, DELIVERED),
    (Mutant::DiscardedIsResent, &scope::PARKED, DISCARDED),
    (Mutant::RegressionIsIgnored, &scope::LOSS, DELIVERED),
    (Mutant::MilestonesStay, &scope::KEPT, DUE),
    (Mutant::RetentionByAge, &scope::RETENTION, DUE),
    (Mutant::RetentionByHigh, &scope::RETENTION, DUE),
    (Mutant::RetentionByCursor, &scope::KEPT, DELIVERED),
    (Mutant::RetentionOfParked, &scope::KEPT, DUE),
    (Mutant::ForeignIsIgnored, &scope::RESTORED, DELIVERED),
    (Mutant::ResetOnlyToHigh, &scope::RESTORED, DELIVERED),
    (Mutant::ResetForgetsLate, &scope::RESTORED, ACKNOWLEDGED),
];
