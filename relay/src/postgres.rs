//! PostgreSQL as a relay uses it: the claiming transaction, and the statements that deliver, one to
//! a file in `sql`.

pub(crate) mod canary;
pub(crate) mod claim;
pub(crate) mod delayed;
pub(crate) mod expectations;
pub(crate) mod fleet;
pub(crate) mod home;
pub(crate) mod integrity;
pub(crate) mod lag;
pub(crate) mod listen;
mod log;
pub(crate) mod look;
pub(crate) mod read;
pub(crate) mod receipts;
pub(crate) mod retention;
pub(crate) mod session;
pub(crate) mod settle;
pub(crate) mod store;

pub(crate) use self::{
    claim::{Claim, Seen, Wanted},
    expectations::Peers,
    listen::Leader,
    receipts::{KnownStream, Receipt},
    session::Session,
    store::Store,
};
