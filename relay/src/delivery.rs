//! Messages, their ids, cursors, outcomes and decisions. Pure: nothing here talks to a server.

pub(crate) mod breaker;
pub(crate) mod cause;
pub(crate) mod copy;
pub(crate) mod cursor;
pub(crate) mod decision;
pub(crate) mod home;
pub(crate) mod lag;
pub(crate) mod letter;
pub(crate) mod message;
pub(crate) mod message_id;
pub(crate) mod minute;
pub(crate) mod pause;
pub(crate) mod place;
pub(crate) mod receipt;
pub(crate) mod snapshot;
pub(crate) mod subjects;

pub(crate) use self::{
    breaker::Breaker,
    cause::Cause,
    cursor::{Read, Settlement},
    decision::{Decision, Failure, Outcome},
    lag::Standing,
    letter::Letter,
    message::{INLINE_MAX, Message, Object, Parked, Replay},
    pause::Pauses,
    place::{Birth, is_unseen, split},
    receipt::{Acknowledged, Evidence},
    snapshot::Snapshot,
    subjects::{any_expression, covers},
};
