//! PostgreSQL as a relay uses it: the claiming transaction, and the statements that deliver, one to
//! a file in `sql`.

pub(crate) mod canary;
pub(crate) mod claim;
pub(crate) mod delayed;
pub(crate) mod expectations;
pub(crate) mod leader;
pub(crate) mod fleet;
pub(crate) mod history;
pub(crate) mod home;
pub(crate) mod idle;
pub(crate) mod integrity;
pub(crate) mod lag;
pub(crate) mod listen;
mod log;
pub(crate) mod look;
mod payloads;
pub(crate) mod read_on;
pub(crate) mod receipts;
pub(crate) mod retention;
pub(crate) mod room;
pub(crate) mod session;
pub(crate) mod settle;
pub(crate) mod store;
mod throttle;

pub(crate) use self::{
    claim::{Claim, Seen, Wanted},
    expectations::Peers,
    leader::Leader,
    receipts::{KnownStream, Receipt},
    session::Session,
    store::Store,
};
