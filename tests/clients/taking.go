// A participant of sagas, whose steps each have an entry in `stock`: see tests/it/clients/taking.rs.
package main

import (
	"context"
	"log"
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

type command struct {
	Cents int64 `json:"cents"`
}

var (
	barrier = oncebox.Barrier{Name: "stock:step"}
	replier = oncebox.Replier{Allowed: []string{"sagas.replies", "odd.*.replies"}}
)

func note(ctx context.Context, tx pgx.Tx, message oncebox.Message, change int) error {
	_, err := tx.Exec(ctx, "INSERT INTO stock (key, change) VALUES ($1, $2)", message.Key, change)
	return err
}

func act(ctx context.Context, tx pgx.Tx, message oncebox.Message, data command) (any, error) {
	decision, err := barrier.Action(ctx, tx, message)
	switch {
	case err != nil:
		return nil, err
	case decision == oncebox.Refused:
		return oncebox.Reject{Reply: "too late"}, nil
	case decision == oncebox.Act && data.Cents > 1000 && strings.Contains(message.Key, "ship"):
		return oncebox.Reject{Reply: "no such address"}, barrier.HadNoEffect(ctx, tx, message)
	case decision == oncebox.Act:
		err = note(ctx, tx, message, 1)
	}
	return 77, err
}

func undo(ctx context.Context, tx pgx.Tx, message oncebox.Message, data command) (any, error) {
	decision, err := barrier.Compensation(ctx, tx, message)
	if err != nil || decision != oncebox.Undo {
		return 77, err
	}
	if data.Cents == 13 && !strings.Contains(message.Key, "#") {
		return oncebox.Reject{Reply: "not now"}, barrier.HasUndoneNothing(ctx, tx, message)
	}
	return 77, note(ctx, tx, message, -1)
}

func take(ctx context.Context, tx pgx.Tx, message oncebox.Message, data command) (any, error) {
	run := act
	if strings.HasSuffix(message.Key, ":undo") {
		run = undo
	}
	result, err := run(ctx, tx, message, data)
	if err == nil {
		_, err = replier.Reply(ctx, tx, message, result)
	}
	return result, err
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
	inbox := oncebox.NewInbox(pool, "Bücher & Co: the cash desk", oncebox.InboxOptions{AttemptsMax: 2, Backoff: 100 * time.Millisecond, BackoffMax: 100 * time.Millisecond})
	consumer := oncebox.NewConsumer(js, os.Getenv("STREAM"), "taking", oncebox.ConsumerOptions{Concurrency: 3})
	if err := consumer.Run(ctx, inbox, oncebox.JSON(take)); err != nil {
		log.Fatal(err)
	}
}
