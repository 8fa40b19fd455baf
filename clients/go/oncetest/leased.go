package oncetest

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"oncebox"
)

// The most statements that are cut off, one by one.
const statementsMax = 100

// LeasedCrashes are the parts of a test of a handler with effects outside the database.
type LeasedCrashes struct {
	// Inbox makes the inbox on a pool, whose connections are cut.
	Inbox   func(*pgxpool.Pool) *oncebox.Inbox
	Handler oncebox.Leased
	// Payload is that of the message with this key.
	Payload func(key string) any
	// Effects describes the effects of this key, also those of the provider.
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
			left := &atomic.Int64{}
			left.Store(place)
			pool := cut(test, databaseURL, func(sent []byte) (isCut, isDone bool) {
				now := left.Load()
				// Of the protocol: a statement, in one of its forms.
				if isStatement := bytes.ContainsAny(sent[:1], "PQB"); isStatement && now > 0 {
					now = left.Add(-1)
					isDone = now == 0 && when == "after"
				}
				if isCut = now <= 0; isCut {
					kill()
				}
				return isCut, isDone
			})
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
