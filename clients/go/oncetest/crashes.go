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
	"golang.org/x/sync/errgroup"
	"oncebox"
)

// Crashes are the parts of a test of a handler.
type Crashes struct {
	// Inbox makes the inbox on a pool, whose connections are cut.
	Inbox   func(*pgxpool.Pool) *oncebox.Inbox
	Handler oncebox.Handler
	// Payload is that of the message with this key.
	Payload func(key string) any
	// Effects describes the effects of this key.
	Effects func(key string) string
}

// Run runs the handler through duplicates, crashes, a lost commit and races, and returns in which it did
// not have its effects once. Each scenario has a key of its own.
func (c Crashes) Run(test testing.TB, databaseURL string) (wrong []string) {
	ctx := context.Background()
	pool, isArmed := losing(test, databaseURL)
	inbox := c.Inbox(pool)
	if err := inbox.Register(ctx); err != nil {
		test.Fatal(err)
	}
	again := func(message oncebox.Message) error {
		_, err := RunUntilFinal(ctx, inbox, c.Handler, message)
		return err
	}
	dying := func(ctx context.Context, tx pgx.Tx, message oncebox.Message) (any, error) {
		if _, err := c.Handler(ctx, tx, message); err != nil {
			return nil, err
		}
		_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
		return nil, err
	}
	scenarios := []struct {
		name string
		run  func(oncebox.Message) error
	}{
		{"calm", again},
		{"duplicate", func(message oncebox.Message) error {
			return errors.Join(again(message), again(message), again(message))
		}},
		{"crash-before-commit", func(message oncebox.Message) error {
			_, err := inbox.Run(ctx, dying, message)
			return errors.Join(err, again(message))
		}},
		// The process dies before it acknowledges, so another one gets the message again.
		{"crash-after-commit", func(message oncebox.Message) error {
			redelivered := message
			redelivered.Deliveries = 2
			return errors.Join(again(message), again(redelivered))
		}},
		{"lost-commit", func(message oncebox.Message) error {
			isArmed.Store(true)
			_, err := inbox.Run(ctx, c.Handler, message)
			if isArmed.Load() {
				err = errors.New("the inbox has other connections than those of the given pool")
			}
			return errors.Join(err, again(message))
		}},
		{"concurrent-pair", func(message oncebox.Message) error {
			var pair errgroup.Group
			for range 2 {
				pair.Go(func() error { return again(message) })
			}
			return pair.Wait()
		}},
	}
	expected := ""
	for _, scenario := range scenarios {
		if err := scenario.run(Message(scenario.name, c.Payload(scenario.name))); err != nil {
			test.Fatalf("%s: %v", scenario.name, err)
		}
		found := c.Effects(scenario.name)
		if scenario.name == "calm" {
			expected = found
		}
		if found != expected {
			wrong = append(wrong, fmt.Sprintf("%s: %s instead of %s", scenario.name, found, expected))
		}
	}
	return wrong
}

// losing is a pool of which, once armed, the answer to the next COMMIT is lost, though it is done.
func losing(test testing.TB, databaseURL string) (*pgxpool.Pool, *atomic.Bool) {
	isArmed := &atomic.Bool{}
	return cut(test, databaseURL, func(sent []byte) (isCut, isDone bool) {
		isCut = bytes.Contains(sent, []byte("COMMIT\x00")) && isArmed.CompareAndSwap(true, false)
		return isCut, true
	}), isArmed
}

// cut is a pool whose connections are cut where the function says so of the bytes that are sent:
// before PostgreSQL gets them, or when it has executed them and only its answer is lost.
func cut(test testing.TB, databaseURL string, where func(sent []byte) (isCut, isDone bool)) *pgxpool.Pool {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		test.Fatal(err)
	}
	// So that each statement is sent as text, in one piece.
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		connection, err := dial(ctx, network, address)
		return &cutConn{connection, where}, err
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		test.Fatal(err)
	}
	test.Cleanup(pool.Close)
	return pool
}

type cutConn struct {
	net.Conn
	where func(sent []byte) (isCut, isDone bool)
}

func (c *cutConn) Write(sent []byte) (int, error) {
	isCut, isDone := c.where(sent)
	if !isCut {
		return c.Conn.Write(sent)
	}
	if isDone {
		// The server answers when it is done.
		_, _ = c.Conn.Write(sent)
		_, _ = c.Conn.Read(make([]byte, 1<<16))
	}
	return 0, errors.Join(errors.New("the connection is cut"), c.Conn.Close())
}
