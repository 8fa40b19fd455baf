// A consumer that keeps the order of each key: see tests/it/clients/ordering.rs.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"oncebox"
)

type numbered struct {
	Key string `json:"key"`
	N   int    `json:"n"`
}

const try = `INSERT INTO tried (key, n) VALUES ($1, $2) RETURNING (SELECT count(*) FROM tried WHERE key = $1 AND n = $2)`

// Writes the effect; each seventh message fails twice first, and one whose negative number is in the
// table `tried` is given up.
func handler(pool *pgxpool.Pool) oncebox.Handler {
	return func(ctx context.Context, tx pgx.Tx, message oncebox.Message) (any, error) {
		var is numbered
		if err := json.Unmarshal(message.Payload, &is); err != nil {
			return nil, err
		}
		var broken int
		err := tx.QueryRow(ctx, "SELECT count(*) FROM tried WHERE key = $1 AND n = -$2::int AND n < 0", is.Key, is.N).Scan(&broken)
		if err != nil {
			return nil, err
		}
		if broken > 0 {
			return nil, oncebox.GiveUp(fmt.Sprintf("no account %d", is.N))
		}
		if is.N%7 == 3 {
			var tried int
			if err := pool.QueryRow(ctx, try, is.Key, is.N).Scan(&tried); err != nil {
				return nil, err
			}
			if tried < 2 {
				return nil, errors.New("as it was told")
			}
		}
		_, err = tx.Exec(ctx, "INSERT INTO effect (key, n) VALUES ($1, $2)", is.Key, is.N)
		return nil, err
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	config.MaxConns = 18
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
	inbox := oncebox.NewInbox(pool, "ordering:test", oncebox.InboxOptions{
		Backoff: 150 * time.Millisecond, BackoffMax: 150 * time.Millisecond,
	})
	options := oncebox.ConsumerOptions{Concurrency: 8, AckWait: 2 * time.Second}
	if os.Getenv("ORDER") == "strict" {
		options.Order = oncebox.Strict
	}
	options.FilterSubject = os.Getenv("FILTER")
	options.FromNow = os.Getenv("ORDER") == "now"
	if options.Batch, err = strconv.Atoi(os.Getenv("BATCH")); err != nil {
		log.Fatal(err)
	}
	consumer := oncebox.NewConsumer(js, os.Getenv("STREAM"), "ordering", options)
	if err := consumer.Run(ctx, inbox, handler(pool)); err != nil {
		log.Fatal(err)
	}
}
