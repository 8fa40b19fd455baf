//! Integration tests on real PostgreSQL and real nats-server.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics; helpers of tests are tests")]

mod examples; // every example runs, and says what it should
mod harness; // the harness itself: servers that start, restart, and die with their owner
mod outbox; // the outbox crate: what a producer may rely on
mod proxy; // the fault-injecting proxy keeps its word
mod torture; // producers and relays at random, a verdict over the whole stream
