// A consumer in order, whose handler notes each commit and fails now and then: see
// tests/it/clients/ordered.rs.
package main

import (
	"context"
	"errors"
	"log"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"oncebox"
)

func note(ctx context.Context, tx pgx.Tx, message oncebox.Message) (any, error) {
	if strings.Contains(message.Key, "dead") {
		return nil, oncebox.GiveUp("as it was told")
	}
	time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond)
	// The lock of the line has the numbers of commits in their order.
	insert := `WITH locked AS (SELECT pg_advisory_xact_lock(hashtext($1)))
		INSERT INTO handled (line, sequence, key) SELECT $1, $2, $3 FROM locked`
	_, err := tx.Exec(ctx, insert, message.Headers["oncebox-ordering-key"], message.Origin.Sequence, message.Key)
	if err == nil && rand.IntN(10) == 0 {
		err = errors.New("now and then")
	}
	return nil, err
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	config.MaxConns = 12
	pool, err := pgxpool.NewWithConfig(ctx, config)
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
	inbox := oncebox.NewInbox(pool, "order:test", oncebox.InboxOptions{
		AttemptsMax: 100, Backoff: 50 * time.Millisecond, BackoffMax: 500 * time.Millisecond,
		// A suspended handler holds its key for so long, and 5 s more.
		HandlerTimeout: 10 * time.Second,
	})
	options := oncebox.ConsumerOptions{Concurrency: 8}
	settings := os.Getenv("SETTINGS")
	if strings.Contains(settings, "strict") {
		options.Order = oncebox.Strict
	}
	options.FromNow = strings.Contains(settings, "new")
	if strings.Contains(settings, "batch") {
		options.Batch = 16
	}
	if err := oncebox.NewConsumer(js, os.Getenv("STREAM"), "ordered", options).Run(ctx, inbox, note); err != nil {
		log.Fatal(err)
	}
}
