//! The relay daemon: carries committed outbox messages from PostgreSQL to NATS JetStream.
