// A consumer whose handler does as the payload says: see tests/it/clients/scenarios.rs.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"oncebox"
)

type told struct {
	Name  string   `json:"name"`
	SQL   []string `json:"sql"`
	Do    string   `json:"do"`
	Reply bool     `json:"reply"`
}

type odd struct{}

func (odd) Error() string { panic("no text") }

var (
	logs, exhausted *pgxpool.Pool
	lost            sync.Map
)

// late goes on until the message has ended, and then writes again and again.
func late(tx pgx.Tx, key string) {
	ctx := context.Background()
	for isOver := false; !isOver; time.Sleep(10 * time.Millisecond) {
		ended := "SELECT EXISTS (SELECT FROM oncebox.inbox WHERE key = $1)"
		if err := logs.QueryRow(ctx, ended, key).Scan(&isOver); err != nil {
			log.Fatal(err)
		}
	}
	for range 20 {
		said := "written"
		if _, err := tx.Exec(ctx, "INSERT INTO public.effect (name) VALUES ($1)", key); err != nil {
			said = err.Error()
		}
		if _, err := logs.Exec(ctx, "INSERT INTO late (name, said) VALUES ($1, $2)", key, said); err != nil {
			log.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func handle(ctx context.Context, tx pgx.Tx, message oncebox.Message, data told) (any, error) {
	run := "INSERT INTO run (name, deliveries) VALUES ($1, $2)"
	if _, err := logs.Exec(ctx, run, data.Name, message.Deliveries); err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, "INSERT INTO effect (name) VALUES ($1)", data.Name); err != nil {
		return nil, err
	}
	for _, text := range data.SQL {
		_, err := tx.Exec(ctx, text)
		if refused, isRefused := errors.AsType[*pgconn.PgError](err); err != nil && !(isRefused && refused.Code == "22012") {
			return nil, err
		}
	}
	switch data.Do {
	case "reject":
		return oncebox.Reject{Reply: "no"}, nil
	case "dead":
		return nil, oncebox.GiveUp("no use")
	case "fail":
		return nil, errors.New("as it was told")
	case "panic":
		panic("as it was told")
	case "retry":
		return nil, oncebox.RetryAfter(700 * time.Millisecond)
	case "conflict":
		if _, isLost := lost.LoadOrStore(data.Name, true); !isLost {
			_, err := tx.Exec(ctx, "DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")
			return nil, err
		}
	case "hang":
		<-ctx.Done()
		return nil, ctx.Err()
	case "late":
		go late(tx, message.Key)
	case "types":
		spoil(tx.Conn().TypeMap())
		outgoing := oncebox.Outgoing{Key: data.Name, Subject: "orders.placed", Payload: map[string]string{"name": data.Name}}
		first, err := oncebox.Enqueue(ctx, tx, outgoing)
		if err != nil {
			return nil, err
		}
		if again, err := oncebox.Enqueue(ctx, tx, outgoing); err != nil || first == 0 || again != 0 {
			return nil, fmt.Errorf("Enqueue returns %d, then %d, %w", first, again, err)
		}
	case "pool":
		waiting, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		_, err := exhausted.Acquire(waiting)
		return nil, err
	case "exit":
		os.Exit(9)
	case "odd-reply":
		return math.NaN(), nil
	case "long-reply":
		return strings.Repeat("x", 1<<20), nil
	case "odd-error":
		return nil, odd{}
	}
	if data.Reply {
		return map[string]string{"did": data.Name}, nil
	}
	return nil, nil
}

// spoil makes of every type another one.
func spoil(types *pgtype.Map) {
	for _, oid := range []uint32{pgtype.Int8OID, pgtype.ByteaOID, pgtype.JSONOID, pgtype.JSONBOID, pgtype.TimestamptzOID} {
		types.RegisterType(&pgtype.Type{Name: "spoiled", OID: oid, Codec: &pgtype.PointCodec{}})
	}
}

func pool(change func(*pgxpool.Config)) *pgxpool.Pool {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	change(config)
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}
	return pool
}

func settings(config *pgxpool.Config) {
	config.MaxConns = 3
	switch os.Getenv("SETTINGS") {
	case "strict":
		config.MaxConns = 4 // one of them holds the right to consume
	case "simple_protocol":
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	case "exec":
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	case "types":
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeDescribeExec
		config.AfterConnect = func(_ context.Context, connection *pgx.Conn) error {
			spoil(connection.TypeMap())
			return nil
		}
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logs = pool(func(config *pgxpool.Config) { config.MaxConns = 4 })
	exhausted = pool(func(config *pgxpool.Config) { config.MaxConns = 1 })
	if _, err := exhausted.Acquire(ctx); err != nil {
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
	inbox := oncebox.NewInbox(pool(settings), "conform:test", oncebox.InboxOptions{
		TenantHeader: "Tenant", AttemptsMax: 3, Backoff: 400 * time.Millisecond, BackoffMax: 2 * time.Second, HandlerTimeout: 5 * time.Second,
	})
	options, each := oncebox.ConsumerOptions{Concurrency: 3}, oncebox.JSON(handle)
	setting := os.Getenv("SETTINGS")
	if setting == "batch" || setting == "set" {
		options.Batch = 16
	}
	if setting == "strict" {
		options.Order = oncebox.Strict
	}
	consumer := oncebox.NewConsumer(js, os.Getenv("STREAM"), "conform", options)
	if setting == "set" {
		err = consumer.RunSet(ctx, inbox, func(ctx context.Context, tx pgx.Tx, messages []oncebox.Message) (replies []any, err error) {
			for _, message := range messages {
				reply, err := each(ctx, tx, message)
				if err != nil {
					return nil, err
				}
				replies = append(replies, reply)
			}
			return replies, nil
		})
	} else {
		err = consumer.Run(ctx, inbox, each)
	}
	if err != nil {
		log.Fatal(err)
	}
}
