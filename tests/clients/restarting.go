// Restarts strict consumers, snoozes a message, and takes all connections of a pool, and says how that ends:
// tests/it/clients/restarting.rs.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"oncebox"
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func pool(size int32) *pgxpool.Pool {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	must(err)
	config.MaxConns = size
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	must(err)
	return pool
}

// restarted runs a strict consumer three times, each until it has handled a message after the first
// one, whose handler fails so, and prints how often the first one ran.
func restarted(js jetstream.JetStream, pool *pgxpool.Pool, name string, failure error) {
	ctx, stream := context.Background(), strings.ToUpper(rand.Text()[:8])
	_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{stream + ".>"}})
	must(err)
	defer func() { must(js.DeleteStream(ctx, stream)) }()
	publish := func(key string) {
		sent := nats.NewMsg(stream + ".a")
		sent.Header.Set("Idempotency-Key", key)
		sent.Header.Set("Oncebox-Ordering-Key", key)
		_, err := js.PublishMsg(ctx, sent)
		must(err)
	}
	publish(name)
	runs := 0
	for round := range 3 {
		publish(fmt.Sprint(name, round))
		running, stop := context.WithTimeout(ctx, 30*time.Second)
		inbox := oncebox.NewInbox(pool, name+":test", oncebox.InboxOptions{AttemptsMax: 3, Backoff: time.Hour, BackoffMax: time.Hour})
		options := oncebox.ConsumerOptions{Order: oncebox.Strict, Concurrency: 1}
		must(oncebox.NewConsumer(js, stream, "restarting", options).Run(running, inbox,
			func(_ context.Context, _ pgx.Tx, message oncebox.Message) (any, error) {
				if message.Key != name {
					time.AfterFunc(200*time.Millisecond, stop)
					return nil, nil
				}
				runs++
				return nil, failure
			}))
		stop()
	}
	var failures, snoozes int
	counts := "SELECT (SELECT coalesce(sum(failures), 0) FROM oncebox.inbox_attempt WHERE key = $1), (SELECT coalesce(sum(snoozes), 0) FROM oncebox.inbox_snooze WHERE key = $1)"
	must(pool.QueryRow(ctx, counts, name).Scan(&failures, &snoozes))
	fmt.Printf("%s: %d runs, %d failures, %d snoozes\n", name, runs, failures, snoozes)
}

// snoozed runs a message that is snoozed each time, until it has been for too long.
func snoozed(pool *pgxpool.Pool) {
	ctx := context.Background()
	inbox := oncebox.NewInbox(pool, "snoozing:test", oncebox.InboxOptions{AttemptsMax: 2, SnoozeMax: time.Second})
	must(inbox.Register(ctx))
	handler := func(context.Context, pgx.Tx, oncebox.Message) (any, error) {
		return nil, fmt.Errorf("asked: %w", oncebox.Snooze(time.Millisecond, "the ledger is closed"))
	}
	message := oncebox.Message{Subject: "a", Payload: []byte("{}"), Headers: map[string]string{"idempotency-key": "snoozes"}}
	for message.Deliveries = 1; ; message.Deliveries++ {
		answer, err := inbox.Run(ctx, handler, message)
		must(err)
		if message.Deliveries == 1 || answer.Name != "retry" {
			fmt.Printf("snoozes: %s, %t, %s\n", answer.Name, message.Deliveries > 4, answer.Reason)
		}
		if answer.Name != "retry" {
			return
		}
		if answer.After < 100*time.Millisecond {
			log.Fatal("the pause is ", answer.After)
		}
		time.Sleep(answer.After)
	}
}

func main() {
	ctx := context.Background()
	said := &bytes.Buffer{}
	slog.SetDefault(slog.New(slog.NewTextHandler(said, nil)))
	client, err := nats.Connect(os.Getenv("NATS_URL"))
	must(err)
	js, err := jetstream.New(client)
	must(err)
	large := pool(8)
	restarted(js, large, "fails", errors.New("as it was told"))
	restarted(js, large, "snoozed", oncebox.Snooze(time.Hour, "the ledger is closed"))
	snoozed(large)
	small := pool(1)
	inbox := oncebox.NewInbox(small, "small:test", oncebox.InboxOptions{})
	strict := oncebox.ConsumerOptions{Order: oncebox.Strict}
	fmt.Println("small:", oncebox.NewConsumer(js, "NONE", "small", strict).Run(ctx, inbox, nil))
	none := oncebox.ConsumerOptions{}
	fmt.Println("stream:", oncebox.NewConsumer(js, "NONE", "none", none).Run(ctx, oncebox.NewInbox(large, "none:test", oncebox.InboxOptions{}), nil))
	fmt.Println("schema:", oncebox.NewConsumer(js, "NONE", "none", none).Run(ctx, oncebox.NewInbox(large, "none:test", oncebox.InboxOptions{Schema: "nowhere"}), nil))
	fmt.Println("mode:", oncebox.NewConsumer(js, "NONE", "none", none).RunLeased(ctx, oncebox.NewInbox(large, "snoozing:test", oncebox.InboxOptions{}), oncebox.Leased{}))
	fmt.Println("small:", oncebox.NewConsumer(js, "NONE", "none", none).RunLeased(ctx, inbox, oncebox.Leased{}))
	told := func(what string) int { return strings.Count(said.String(), "the consumer "+what) }
	fmt.Println("told:", told("starts"), told("has ended"), told("has finished"))
	taken, err := small.Acquire(ctx)
	must(err)
	time.AfterFunc(12*time.Second, taken.Release)
	must(inbox.Register(ctx))
	fmt.Println("waits:", strings.Contains(said.String(), "all 1 connections of the pool are in use"))
}
