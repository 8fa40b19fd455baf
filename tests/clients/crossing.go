// A consumer under leases, whose provider waits at a gate: see tests/it/clients/crossing.rs.
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

func provider(pool *pgxpool.Pool) func(context.Context, string) (string, error) {
	return func(ctx context.Context, key string) (string, error) {
		if _, err := pool.Exec(ctx, "INSERT INTO called (key) VALUES ($1)", key); err != nil {
			return "", err
		}
		for isClosed := true; isClosed; time.Sleep(50 * time.Millisecond) {
			if err := pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM gate WHERE key = $1)", key).Scan(&isClosed); err != nil {
				return "", err
			}
		}
		return "receipt of " + key, nil
	}
}

func finish(ctx context.Context, tx pgx.Tx, message oncebox.Message, digest any) error {
	_, err := tx.Exec(ctx, "INSERT INTO arrived (key, digest) VALUES ($1, $2)", message.Key, digest)
	return err
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	check(err)
	config.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(ctx, config)
	check(err)
	client, err := nats.Connect(os.Getenv("NATS_URL"), nats.MaxReconnects(-1))
	check(err)
	js, err := jetstream.New(client)
	check(err)
	handle := func(ctx context.Context, lease *oncebox.Lease, message oncebox.Message) (any, error) {
		_, err := oncebox.Effect[string]{Step: "pay", Call: provider(pool), IsProviderIdempotent: true}.Do(ctx, lease)
		digest := sha256.Sum256(message.Payload)
		return hex.EncodeToString(digest[:]), err
	}
	short := 100 * time.Millisecond
	inbox := oncebox.NewInbox(pool, "tests:crossing", oncebox.InboxOptions{AttemptsMax: 9, Backoff: short, BackoffMax: short})
	options := oncebox.ConsumerOptions{Concurrency: 4, AckWait: 2 * time.Second}
	if os.Getenv("ORDER") == "strict" {
		options.Order = oncebox.Strict
	}
	consumer := oncebox.NewConsumer(js, os.Getenv("STREAM"), "crossing", options)
	check(consumer.RunLeased(ctx, inbox, oncebox.Leased{Handle: handle, Finish: finish, Lease: 2 * time.Second}))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
