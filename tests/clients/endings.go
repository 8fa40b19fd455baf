// Runs messages whose handlers and connections end in odd ways, and says how: tests/it/clients/endings.rs.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"oncebox"
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	must(err)
	config.MaxConns = 3
	pool, err := pgxpool.NewWithConfig(ctx, config)
	must(err)
	direct, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	must(err)
	options := oncebox.InboxOptions{AttemptsMax: 2}
	options.Tracer = func(context.Context, oncebox.Span) (context.Context, func(string)) { panic("as it was told") }
	inbox := oncebox.NewInbox(pool, "endings:test", options)
	must(inbox.Register(ctx))
	runs := 0
	run := func(name, payload string, handler oncebox.Handler) {
		runs = 0
		message := oncebox.Message{Subject: "a", Payload: []byte(payload), Headers: map[string]string{"idempotency-key": name}}
		answer, err := inbox.Run(ctx, func(ctx context.Context, tx pgx.Tx, message oncebox.Message) (any, error) {
			runs++
			return handler(ctx, tx, message)
		}, message)
		must(err)
		isLong := answer.After > 10*time.Minute
		fmt.Printf("%s: %s, %d, %t, %s%s\n", name, answer.Name, runs, isLong, answer.Reason, answer.Reply)
	}
	nothing := func(context.Context, pgx.Tx, oncebox.Message) (any, error) { return nil, nil }
	run("calm", "{}", nothing)
	run("rejects", "{}", func(context.Context, pgx.Tx, oncebox.Message) (any, error) { return &oncebox.Reject{Reply: "no"}, nil })
	run("rejects", "{}", nothing)
	run("conflict", "{}", func(ctx context.Context, tx pgx.Tx, _ oncebox.Message) (any, error) {
		if runs > 1 {
			return nil, nil
		}
		_, err := tx.Exec(ctx, "DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")
		return nil, errors.Join(errors.New("first"), fmt.Errorf("second: %w", err))
	})
	run("later", "{}", func(context.Context, pgx.Tx, oncebox.Message) (any, error) {
		return nil, fmt.Errorf("not yet: %w", oncebox.RetryAfter(2*time.Hour))
	})
	run("group", "{}", func(context.Context, pgx.Tx, oncebox.Message) (any, error) {
		return nil, errors.Join(errors.New("first"), errors.New("second"))
	})
	type order struct {
		Cents int64 `json:"cents"`
	}
	decode := func(context.Context, pgx.Tx, oncebox.Message, order) (any, error) { return nil, nil }
	run("field", `{"cents":"secret"}`, oncebox.JSON(decode))
	run("number", `{"cents":12.5}`, oncebox.JSON(decode))
	run("syntax", `{"cents":`, oncebox.JSON(decode))
	// All connections of the pool have died while they were idle.
	var taken []*pgxpool.Conn
	for range 3 {
		connection, err := pool.Acquire(ctx)
		must(err)
		taken = append(taken, connection)
	}
	for _, connection := range taken {
		pid := connection.Conn().PgConn().PID()
		connection.Release()
		_, err := direct.Exec(ctx, "SELECT pg_terminate_backend($1::int, 5000)", int32(pid))
		must(err)
	}
	run("died", "{}", nothing)
	// A server that was demoted.
	_, err = pool.Exec(ctx, "SET default_transaction_read_only = on")
	must(err)
	run("demoted", "{}", nothing)
	must(pgx.BeginFunc(ctx, direct, func(tx pgx.Tx) error {
		many := []oncebox.Outgoing{
			{Key: "a", Subject: "orders.a", Payload: 1, OrderingKey: "o", Headers: map[string]string{"q": `"\`}},
			{Key: "b", Subject: "orders.b", Payload: []byte{255}},
		}
		ids, err := oncebox.EnqueueAll(ctx, tx, many)
		must(err)
		again, err := oncebox.EnqueueAll(ctx, tx, append(many, oncebox.Outgoing{Key: "c", Subject: "orders.c", Payload: 3}))
		_, mixed := oncebox.EnqueueAll(ctx, tx, append(many, oncebox.Outgoing{Key: "d", Subject: "orders.d", Schema: "other"}))
		fmt.Println("mixed:", mixed)
		fmt.Println("many:", ids[0] > 0, ids[1] > ids[0], again[:2], again[2] > ids[1])
		return err
	}))
}
