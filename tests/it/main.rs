//! Integration tests on real PostgreSQL and real nats-server.
