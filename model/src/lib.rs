//! The executable specification of Oncebox.

#![allow(missing_docs, reason = "a program for tests: the names say it")]

mod bits;
pub mod outbox;
