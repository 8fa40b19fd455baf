package oncetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"oncebox"
)

// At most so many statements are cut off, one by one.
const statementsMax = 100

// LeasedCrashes are the parts of a test of a handler with effects outside the database.
type LeasedCrashes struct {
	// Inbox makes the inbox on a pool, whose connections are cut.
	Inbox   func(*pgxpool.Pool) *oncebox.Inbox
	Handler oncebox.Leased
	// Payload is that of the message with this key.
	Payload func(key string) any
	// Effects tells what was done for this key, also by the provider.
	Effects func(key string) string
}

// Run kills the process, so to say, at each statement of a run: once before it is sent, and once when it
// is done and its answer is lost. Another run goes on when the lease is over, and later than any call
// can still arrive. It returns after which statements the effects did not happen once.
func (c LeasedCrashes) Run(test testing.TB, databaseURL string) (wrong []string) {
	ctx := context.Background()
	healthy := Pool(test, databaseURL)
	again := func(key string) {
		inbox := c.Inbox(healthy)
		_, err := untilFinal(func() (oncebox.Verdict, error) {
			later := `WITH claims AS (UPDATE oncebox.inbox_claim SET lease_until = clock_timestamp() WHERE key = $1)
				UPDATE oncebox.inbox_effect SET started_at = started_at - interval '1 day' WHERE key = $1`
			if _, err := healthy.Exec(ctx, later, key); err != nil {
				test.Fatal(err)
			}
			return inbox.RunLeased(ctx, c.Handler, Message(key, c.Payload(key)))
		})
		if err != nil {
			test.Fatalf("%s: %v", key, err)
		}
	}
	again("calm")
	expected := c.Effects("calm")
	for _, when := range []string{"before", "after"} {
		for place := int64(1); ; place++ {
			key := fmt.Sprintf("crash-%s-statement-%d", when, place)
			dying, kill := context.WithCancel(ctx)
			pool, left := dead(test, databaseURL, when == "after", kill)
			left.Store(place)
			_, _ = c.Inbox(pool).RunLeased(dying, c.Handler, Message(key, c.Payload(key)))
			hasDied := left.Load() <= 0
			kill()
			pool.Close()
			again(key)
			if found := c.Effects(key); found != expected {
				wrong = append(wrong, fmt.Sprintf("%s: %s instead of %s", key, found, expected))
			}
			if !hasDied || place == statementsMax {
				break
			}
		}
	}
	return wrong
}

// dead is a pool all of whose connections end at the statement with this number, before it is sent or
// after it is done.
func dead(test testing.TB, databaseURL string, isSent bool, kill func()) (*pgxpool.Pool, *atomic.Int64) {
	left := &atomic.Int64{}
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		test.Fatal(err)
	}
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // one message for each statement
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if left.Load() <= 0 {
			return nil, errors.New("the process is dead")
		}
		connection, err := dial(ctx, network, address)
		return &dyingConn{connection, left, isSent, kill}, err
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		test.Fatal(err)
	}
	return pool, left
}

type dyingConn struct {
	net.Conn
	left   *atomic.Int64
	isSent bool
	kill   func()
}

func (c *dyingConn) Write(sent []byte) (int, error) {
	isStatement := bytes.ContainsAny(sent[:1], "PQB")
	if isStatement && c.left.Add(-1) > 0 || !isStatement && c.left.Load() > 0 {
		return c.Conn.Write(sent)
	}
	if isStatement && c.left.Load() == 0 && c.isSent {
		// The server answers when it is done.
		_, _ = c.Conn.Write(sent)
		_, _ = c.Conn.Read(make([]byte, 1<<16))
	}
	c.kill()
	return 0, errors.Join(errors.New("the process is dead"), c.Conn.Close())
}
