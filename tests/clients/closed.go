// Consumers whose NATS client is closed for good, at work and before they begin: prints how each ends.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"oncebox"
)

func consume(pool *pgxpool.Pool, isAtWork bool) string {
	ctx := context.Background()
	client, err := nats.Connect(os.Getenv("NATS_URL"))
	if err != nil {
		log.Fatal(err)
	}
	js, err := jetstream.New(client)
	if err != nil {
		log.Fatal(err)
	}
	message := nats.NewMsg(os.Getenv("SUBJECT"))
	message.Header.Set("Idempotency-Key", fmt.Sprintf("work-%t", isAtWork))
	if _, err := js.PublishMsg(ctx, message); err != nil {
		log.Fatal(err)
	}
	if !isAtWork {
		client.Close()
	}
	handled, ended := make(chan struct{}, 2), make(chan error, 1)
	consumer := oncebox.NewConsumer(js, os.Getenv("STREAM"), "closed", oncebox.ConsumerOptions{Concurrency: 2})
	go func() {
		inbox := oncebox.NewInbox(pool, "closed:test", oncebox.InboxOptions{})
		ended <- consumer.Run(ctx, inbox, func(context.Context, pgx.Tx, oncebox.Message) (any, error) {
			handled <- struct{}{}
			return nil, nil
		})
	}()
	if isAtWork {
		<-handled
		client.Close()
	}
	select {
	case err := <-ended:
		return fmt.Sprint(err)
	case <-time.After(20 * time.Second):
		return "goes on without a connection"
	}
}

func main() {
	pool, err := pgxpool.New(context.Background(), os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("at work:", consume(pool, true))
	fmt.Println("at start:", consume(pool, false))
}
