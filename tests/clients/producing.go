// Enqueues messages now, later and in the past, and prints the answers:
// tests/it/clients/producing.rs.
package main

import (
	"context"
	"fmt"
	"log"
	"math"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"oncebox"
)

type order struct {
	Order string `json:"order"`
	Cents int64  `json:"cents"`
}

func enqueueAll(ctx context.Context, tx pgx.Tx) error {
	placed := order{"Zoë \"q\" \\t\n", 1999}
	var failed error
	send := func(key string, payload any, in time.Duration) int64 {
		outgoing := oncebox.Outgoing{Key: key, Subject: "orders.placed", Payload: payload}
		if in != 0 {
			outgoing.NotBefore = time.Now().Add(in)
		}
		id, err := oncebox.Enqueue(ctx, tx, outgoing)
		if err != nil {
			failed = err
		}
		return id
	}
	if send("now", placed, 0) > 0 && send("later", placed, time.Hour) > 0 {
		fmt.Println("enqueued")
	}
	if send("past", placed, -time.Hour) > 0 {
		fmt.Println("past")
	}
	if send("later", placed, 2*time.Hour) == 0 {
		fmt.Println("again None")
	}
	send("text", "{\"a\":\"\\t\"}", 0)
	send("bytes", []byte("{\"a\":\"\\t\"}\xff"), time.Hour)
	send("cancelled", placed, time.Hour)
	fmt.Print("cancelled")
	for range 2 {
		isCancelled, err := oncebox.CancelDelayed(ctx, tx, "cancelled", "")
		if err != nil {
			return err
		}
		fmt.Print(" ", strings.ToUpper(fmt.Sprint(isCancelled)[:1]), fmt.Sprint(isCancelled)[1:])
	}
	fmt.Println()
	if failed != nil {
		return failed
	}
	for _, payload := range []any{math.NaN(), map[string]any{"at": make(chan int)}, func() {}} {
		if send("odd", payload, 0); failed != nil {
			fmt.Println("refused")
		}
		failed = nil
	}
	return nil
}

func main() {
	ctx := context.Background()
	connection, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	if err := pgx.BeginFunc(ctx, connection, func(tx pgx.Tx) error { return enqueueAll(ctx, tx) }); err != nil {
		log.Fatal(err)
	}
}
