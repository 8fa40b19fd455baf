// Orders of `bench pipeline` in Go: 8 producers commit an order with its job or message, 16 workers
// insert its effect. Usage: orders-go river|river-unique|go|go-set, with DATABASE_URL and NATS_URL.
//
// It prints "ready", and then answers each line "ORDERS RATE" (orders a second, 0: as fast as it
// can) with the seconds from the first order until the last effect is committed, and with the
// median and the 99th percentile of the milliseconds from the return of COMMIT until the handler
// begins.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	producers, workers = 8, 16
	// spare is for the other work of River: it listens, elects a leader, fetches and completes.
	spare  = 4
	effect = "INSERT INTO effect (order_id, cents) VALUES ($1, $2)"
)

var note = strings.Repeat("x", 200)

// Order is about 256 bytes of JSON.
type Order struct {
	Order int64  `json:"order"`
	Cents int64  `json:"cents"`
	Note  string `json:"note"`
}

// enqueue writes the job or the message of an order in the order's transaction.
type enqueue func(context.Context, pgx.Tx, Order) error

// ways start the handlers, and return the function that their producers call.
var ways = map[string]func(context.Context, *shop) enqueue{
	"river": river, "river-unique": riverUnique, "go": batch, "go-set": set,
}

// shop notes when each order was committed, and when its handler began.
type shop struct {
	pool    *pgxpool.Pool
	enqueue enqueue
	// before is the number of orders of earlier lines.
	before  int64
	times   atomic.Pointer[[]times]
	handled atomic.Int64
	begun   time.Time
}

type times struct{ committed, started atomic.Int64 }

func main() {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	check(err)
	config.MaxConns = producers + workers + spare
	pool, err := pgxpool.NewWithConfig(ctx, config)
	check(err)
	shop := &shop{pool: pool}
	shop.enqueue = ways[os.Args[1]](ctx, shop)
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var orders, rate int64
		_, err := fmt.Sscan(lines.Text(), &orders, &rate)
		check(err)
		fmt.Println(shop.sell(ctx, orders, rate))
	}
}

func (s *shop) sell(ctx context.Context, orders, rate int64) string {
	all := make([]times, orders)
	s.times.Store(&all)
	s.handled.Store(0)
	s.begun = time.Now()
	var next atomic.Int64
	var group sync.WaitGroup
	for range producers {
		group.Go(func() {
			for number := next.Add(1) - 1; number < orders; number = next.Add(1) - 1 {
				if rate > 0 {
					time.Sleep(time.Until(s.begun.Add(time.Duration(number) * time.Second / time.Duration(rate))))
				}
				check(s.place(ctx, s.before+number))
				all[number].committed.Store(int64(time.Since(s.begun)))
			}
		})
	}
	group.Wait()
	for s.handled.Load() < orders {
		time.Sleep(time.Millisecond)
	}
	s.before += orders
	// After that the bench says which effects are missing.
	deadline := time.Now().Add(30 * time.Second)
	for effects := int64(0); effects < s.before && time.Now().Before(deadline); {
		check(s.pool.QueryRow(ctx, "SELECT count(*) FROM effect").Scan(&effects))
	}
	took := time.Since(s.begun)
	latencies := make([]int64, orders)
	for n := range all {
		latencies[n] = max(all[n].started.Load()-all[n].committed.Load(), 0)
	}
	slices.Sort(latencies)
	percentile := func(percent int64) float64 { return float64(latencies[(orders*percent+99)/100-1]) / 1e6 }
	return fmt.Sprintf("%.4f %.3f %.3f", took.Seconds(), percentile(50), percentile(99))
}

func (s *shop) place(ctx context.Context, number int64) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO orders (id, cents) VALUES ($1, $2)", number, 100); err != nil {
			return err
		}
		return s.enqueue(ctx, tx, Order{number, 100, note})
	})
}

// begins is called by the handler of each order.
func (s *shop) begins(order Order) {
	all := *s.times.Load()
	if all[order.Order-s.before].started.CompareAndSwap(0, int64(time.Since(s.begun))) {
		s.handled.Add(1)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
