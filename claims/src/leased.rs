//! Claims under a lease, for effects outside the database.
//!
//! ```text
//!            ┌─ ended ────────────▶ replay, or mismatch
//! claim ─────┼─ leased to another ▶ in flight
//! (commits)  └─ won, or taken over after the other's lease
//!     │
//!     ▼                   ┌──────────── renew, every third of the lease ◀─┐
//! handler ─ effect ─ effect ─ ...       lost, or perhaps lost ─▶ dropped, nothing is written
//!     │
//!     ├─ done, rejected ──▶ BEGIN, finish, [the claim's row becomes the inbox's], COMMIT
//!     ├─ dead, limit ─────▶ BEGIN, dead letter, [the same], COMMIT
//!     └─ failed, unknown ─▶ released: another run after a pause
//! ```
//!
//! The claim is a row that is committed before the handler runs, so no transaction and no
//! connection is held while a provider is slow. It names an owner and counts epochs: every write of
//! an owner (a renewal, the record of an effect, or the end) checks both in the same statement, and
//! is rolled back when no row matches. All times are the database's, except that an owner stops
//! early by its own clock, which counts from when a renewal was sent.
//!
//! An effect is recorded as begun before it is called, and with its result after. A run that finds
//! one begun, without a result, knows that it may have happened: it asks the provider before it
//! calls again. See `effect.rs`.
//!
//! No record can exclude one case: a process is suspended between the last look at its lease and
//! the first byte of its call, for longer than the lease and than [`Effect::settles_within`]. Its
//! call arrives late, with the same derived key; only a provider that knows the key can refuse it
//! then.

mod effect;
mod effect_error;
mod held;
mod lease;
mod ledger;
mod store;
mod write;

pub use effect::{Call, Effect, ProviderIdempotent, ReadyEffect, Reconcile};
pub use effect_error::{CallError, EffectError, Meaning, Reconciled};
pub use held::{END_MAX, HeldClaim, Lost};
pub use lease::Lease;
pub use store::{InFlight, LeasedClaims, Name};
pub use write::TRANSACTION_MAX;
