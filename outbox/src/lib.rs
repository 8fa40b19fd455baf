//! Enqueue messages inside the caller's PostgreSQL transaction.
