package main

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	queue "github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// Kind is River's name of the job.
func (Order) Kind() string { return "order" }

// once does the effect of a job.
type once func(context.Context, *queue.Job[Order]) error

type handler struct {
	queue.WorkerDefaults[Order]
	shop *shop
	once once
}

func (h *handler) Work(ctx context.Context, job *queue.Job[Order]) error {
	h.shop.begins(job.Args)
	return h.once(ctx, job)
}

// river completes the job in the transaction of its effect, which is how River does it once.
func river(ctx context.Context, shop *shop) enqueue {
	return throughRiver(ctx, shop, func(ctx context.Context, job *queue.Job[Order]) error {
		return pgx.BeginFunc(ctx, shop.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, effect, job.Args.Order, job.Args.Cents); err != nil {
				return err
			}
			_, err := queue.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
			return err
		})
	})
}

// riverUnique is for effects that a unique index can tell apart: River completes its jobs in
// batches.
func riverUnique(ctx context.Context, shop *shop) enqueue {
	return throughRiver(ctx, shop, func(ctx context.Context, job *queue.Job[Order]) error {
		_, err := shop.pool.Exec(ctx, effect+" ON CONFLICT DO NOTHING", job.Args.Order, job.Args.Cents)
		return err
	})
}

// throughRiver fetches up to 500 times a second, since FetchCooldown limits River's throughput.
// By default it would be 10 times, which RIVER_FETCH_COOLDOWN_MS=100 brings back.
func throughRiver(ctx context.Context, shop *shop, once once) enqueue {
	driver := riverpgxv5.New(shop.pool)
	migrator, err := rivermigrate.New(driver, nil)
	check(err)
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	check(err)
	cooldown, err := strconv.Atoi(cmp.Or(os.Getenv("RIVER_FETCH_COOLDOWN_MS"), "2"))
	check(err)
	handlers := queue.NewWorkers()
	queue.AddWorker(handlers, &handler{shop: shop, once: once})
	client, err := queue.NewClient(driver, &queue.Config{
		FetchCooldown: time.Duration(cooldown) * time.Millisecond,
		Logger:        slog.Default(),
		Queues:        map[string]queue.QueueConfig{queue.QueueDefault: {MaxWorkers: workers}},
		Workers:       handlers,
	})
	check(err)
	check(client.Start(ctx))
	return func(ctx context.Context, tx pgx.Tx, order Order) error {
		_, err := client.InsertTx(ctx, tx, order, nil)
		return err
	}
}
