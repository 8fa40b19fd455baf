// Package oncebox is an outbox and inbox for PostgreSQL and NATS JetStream, with pgx and nats.go.
//
// [Enqueue] writes a message in the caller's transaction; a relay publishes it after the COMMIT.
// A [Consumer] runs a handler once for each key, in one transaction with the handler's own writes.
package oncebox
