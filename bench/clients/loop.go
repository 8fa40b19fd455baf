// The loop of clients.sh in Go: loop bare|inbox|batch|set MESSAGES, prints messages a second.
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
	if os.Args[1] == "bare" {
		var workers sync.WaitGroup
		for range concurrency {
			workers.Go(func() { bare(ctx, js, pool, count) })
		}
		workers.Wait()
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

func bare(ctx context.Context, js jetstream.JetStream, pool *pgxpool.Pool, count func()) {
	source, err := js.Consumer(context.Background(), "BENCH", "bench")
	check(err)
	for ctx.Err() == nil {
		message, err := source.Next(jetstream.FetchMaxWait(time.Second))
		if errors.Is(err, nats.ErrTimeout) {
			continue
		}
		check(err)
		customer, err := strconv.ParseInt(string(message.Data()), 10, 64)
		check(err)
		check(pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(context.Background(), effect, customer)
			return err
		}))
		check(message.Ack())
		count()
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
