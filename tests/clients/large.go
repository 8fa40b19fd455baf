// Notes each payload by its digest, and fails with one: see tests/it/clients/large.rs.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"oncebox"
)

func handle(ctx context.Context, tx pgx.Tx, message oncebox.Message) (any, error) {
	digest := sha256.Sum256(message.Payload)
	sql := "INSERT INTO arrived (key, digest) VALUES ($1, $2)"
	if _, err := tx.Exec(ctx, sql, message.Key, hex.EncodeToString(digest[:])); err != nil {
		return nil, err
	}
	if message.Key == "fails" {
		return nil, oncebox.GiveUp("the handler fails")
	}
	return nil, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	client, err := nats.Connect(os.Getenv("NATS_URL"), nats.MaxReconnects(-1))
	if err != nil {
		log.Fatal(err)
	}
	js, err := jetstream.New(client)
	if err != nil {
		log.Fatal(err)
	}
	short := 100 * time.Millisecond
	inbox := oncebox.NewInbox(pool, "large", oncebox.InboxOptions{AttemptsMax: 2, Backoff: short, BackoffMax: short})
	consumer := oncebox.NewConsumer(js, os.Getenv("STREAM"), "large", oncebox.ConsumerOptions{Concurrency: 2})
	if err := consumer.Run(ctx, inbox, handle); err != nil {
		log.Fatal(err)
	}
}
