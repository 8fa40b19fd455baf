//! The executable specification of Oncebox, checked exhaustively within bounds.
//!
//! The model has the database, the stream, the processes and their faults. It calls the production
//! code where that decides (`oncebox_relay::rules`, `oncebox_saga`), and has the statements as
//! functions that name their files. docs/correctness.md says how far the bounds go, and which parts
//! of the world are left out.

#![expect(missing_docs, reason = "no library for others: the names say it")]

pub mod barrier;
mod bits;
mod due;
pub mod inbox;
pub mod outbox;
pub mod ring;
pub mod saga;
pub mod trace;
