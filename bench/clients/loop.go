// The loop of clients.sh in Go: loop bare|inbox|batch|set|pending|lease MESSAGES, prints messages a
// second.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"oncebox"
)

const (
	concurrency = 16
	effect      = "INSERT INTO effect (customer, cents) VALUES ($1, 100)"
)

func main() {
	messages, err := strconv.ParseInt(os.Args[2], 10, 64)
	check(err)
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	check(err)
	config.MaxConns, config.MinConns = concurrency, concurrency
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	check(err)
	for pool.Stat().IdleConns() < concurrency {
		time.Sleep(10 * time.Millisecond)
	}
	client, err := nats.Connect(os.Getenv("NATS_URL"))
	check(err)
	js, err := jetstream.New(client)
	check(err)

	// Workers end up to a second after the last message, when nothing answers their pull.
	ctx, done := context.WithCancel(context.Background())
	var handled atomic.Int64
	var begun, ended time.Time
	count := func() {
		switch handled.Add(1) {
		case messages / 5:
			begun = time.Now()
		case messages:
			ended = time.Now()
			done()
		}
	}
	if handle, isByHand := byHand[os.Args[1]]; isByHand {
		var workers sync.WaitGroup
		for range concurrency {
			workers.Go(func() { pull(ctx, js, pool, handle, count) })
		}
		workers.Wait()
	} else if os.Args[1] == "lease" {
		finish := func(ctx context.Context, tx pgx.Tx, message oncebox.Message, _ any) error {
			_, err := tx.Exec(ctx, effect, customerOf(message.Payload))
			count()
			return err
		}
		inbox := oncebox.NewInbox(pool, "bench:go-lease", oncebox.InboxOptions{})
		consumer := oncebox.NewConsumer(js, "BENCH", "bench", oncebox.ConsumerOptions{})
		check(consumer.RunLeased(ctx, inbox, oncebox.Leased{Handle: leased, Finish: finish}))
	} else {
		handler := oncebox.JSON(func(ctx context.Context, tx pgx.Tx, _ oncebox.Message, customer int64) (any, error) {
			_, err := tx.Exec(ctx, effect, customer)
			count()
			return nil, err
		})
		set := func(ctx context.Context, tx pgx.Tx, messages []oncebox.Message) ([]any, error) {
			customers := make([]string, len(messages))
			for n, message := range messages {
				customers[n] = string(message.Payload)
			}
			_, err := tx.Exec(ctx, "INSERT INTO effect (customer, cents) SELECT unnest($1::text[])::bigint, 100", customers)
			for range messages {
				count()
			}
			return nil, err
		}
		inbox := oncebox.NewInbox(pool, "bench:go", oncebox.InboxOptions{})
		options := oncebox.ConsumerOptions{Batch: 64}
		if os.Args[1] == "inbox" {
			options.Batch = 1
		}
		consumer := oncebox.NewConsumer(js, "BENCH", "bench", options)
		if os.Args[1] == "set" {
			check(consumer.RunSet(ctx, inbox, set))
		} else {
			check(consumer.Run(ctx, inbox, handler))
		}
	}
	fmt.Println(int64(float64(messages-messages/5) / ended.Sub(begun).Seconds()))
	client.Close()
	pool.Close()
}

// byHand has the loops without Oncebox.
var byHand = map[string]func(jetstream.Msg, *pgxpool.Pool) error{"bare": bare, "pending": pending}

func pull(ctx context.Context, js jetstream.JetStream, pool *pgxpool.Pool, handle func(jetstream.Msg, *pgxpool.Pool) error, count func()) {
	source, err := js.Consumer(context.Background(), "BENCH", "bench")
	check(err)
	for ctx.Err() == nil {
		message, err := source.Next(jetstream.FetchMaxWait(time.Second))
		if errors.Is(err, nats.ErrTimeout) {
			continue
		}
		check(err)
		check(handle(message, pool))
		check(message.Ack())
		count()
	}
}

func bare(message jetstream.Msg, pool *pgxpool.Pool) error {
	return pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(context.Background(), effect, customerOf(message.Data()))
		return err
	})
}

// pending has a row that says that the call begins, and a transaction with its end and the handler's
// writes.
func pending(message jetstream.Msg, pool *pgxpool.Pool) error {
	ctx, key := context.Background(), message.Headers().Get("Idempotency-Key")
	begins, err := pool.Exec(ctx, "INSERT INTO pending (key) VALUES ($1) ON CONFLICT DO NOTHING", key)
	check(err)
	if begins.RowsAffected() == 0 {
		return fmt.Errorf("%s is pending, or done: ask the provider", key)
	}
	receipt, err := provide(ctx, key)
	check(err)
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "UPDATE pending SET receipt = $1 WHERE key = $2", receipt, key); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, effect, customerOf(message.Data()))
		return err
	})
}

func leased(ctx context.Context, lease *oncebox.Lease, _ oncebox.Message) (any, error) {
	return oncebox.Effect[string]{Step: "charge", Call: provide, IsProviderIdempotent: true}.Do(ctx, lease)
}

func provide(_ context.Context, key string) (string, error) {
	milliseconds, err := strconv.Atoi(os.Getenv("CALL_MS"))
	check(err)
	time.Sleep(time.Duration(milliseconds) * time.Millisecond)
	return "receipt of " + key, nil
}

func customerOf(payload []byte) int64 {
	customer, err := strconv.ParseInt(string(payload), 10, 64)
	check(err)
	return customer
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
