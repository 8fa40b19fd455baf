package main

import (
	"context"
	"encoding/json"
	"os"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"oncebox"
)

// batch has a handler for each message of a batch.
func batch(ctx context.Context, shop *shop) enqueue {
	handle := oncebox.JSON(func(ctx context.Context, tx pgx.Tx, _ oncebox.Message, order Order) (any, error) {
		shop.begins(order)
		_, err := tx.Exec(ctx, effect, order.Order, order.Cents)
		return nil, err
	})
	return throughOncebox(func(consumer *oncebox.Consumer) error {
		return consumer.Run(ctx, oncebox.NewInbox(shop.pool, "bench:orders", oncebox.InboxOptions{}), handle)
	})
}

// set has one statement for all messages of a batch.
func set(ctx context.Context, shop *shop) enqueue {
	handle := func(ctx context.Context, tx pgx.Tx, messages []oncebox.Message) ([]any, error) {
		ids, cents := make([]int64, len(messages)), make([]int64, len(messages))
		for n, message := range messages {
			var order Order
			if err := json.Unmarshal(message.Payload, &order); err != nil {
				return nil, err
			}
			shop.begins(order)
			ids[n], cents[n] = order.Order, order.Cents
		}
		const effects = "INSERT INTO effect (order_id, cents) SELECT * FROM unnest($1::bigint[], $2::bigint[])"
		_, err := tx.Exec(ctx, effects, ids, cents)
		return nil, err
	}
	return throughOncebox(func(consumer *oncebox.Consumer) error {
		return consumer.RunSet(ctx, oncebox.NewInbox(shop.pool, "bench:orders", oncebox.InboxOptions{}), handle)
	})
}

func throughOncebox(run func(*oncebox.Consumer) error) enqueue {
	client, err := nats.Connect(os.Getenv("NATS_URL"))
	check(err)
	js, err := jetstream.New(client)
	check(err)
	go func() { check(run(oncebox.NewConsumer(js, "BENCH", "orders", oncebox.ConsumerOptions{Batch: 64}))) }()
	return func(ctx context.Context, tx pgx.Tx, order Order) error {
		key := "order-" + strconv.FormatInt(order.Order, 10)
		_, err := oncebox.Enqueue(ctx, tx, oncebox.Outgoing{Key: key, Subject: "bench.orders", Payload: order})
		return err
	}
}
