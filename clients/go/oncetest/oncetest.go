// Package oncetest is for the tests of your own service: which messages a transaction has enqueued,
// handlers without NATS, crashes on purpose, and a database for each test. See docs/testing.md.
package oncetest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"oncebox"
)

// Enqueued is a message that a transaction has enqueued.
type Enqueued struct {
	Key, Subject, OrderingKey string
	Payload                   []byte
	Headers                   map[string]string
	// NotBefore is zero unless the message is delayed.
	NotBefore time.Time
}

// Messages are those that this open transaction has enqueued, in their order.
func Messages(ctx context.Context, tx pgx.Tx) ([]Enqueued, error) {
	rows, err := tx.Query(ctx, `SELECT m.key, m.subject, coalesce(d.ordering_key, m.ordering_key, ''), coalesce(d.payload, m.payload),
		  coalesce(d.headers, m.headers)::text, coalesce(d.not_before, '0001-01-01 00:00:00Z')
		FROM oncebox.message AS m LEFT JOIN oncebox.delayed AS d ON m.lane = -1 AND d.id = m.id
		WHERE m.xact = pg_current_xact_id_if_assigned() ORDER BY m.id`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (found Enqueued, err error) {
		var headers string
		err = row.Scan(&found.Key, &found.Subject, &found.OrderingKey, &found.Payload, &headers, &found.NotBefore)
		if err == nil {
			err = json.Unmarshal([]byte(headers), &found.Headers)
		}
		delete(found.Headers, "traceparent")
		delete(found.Headers, "tracestate")
		found.NotBefore = found.NotBefore.UTC()
		return found, err
	})
}

// Message is a message as a consumer would get it, for [oncebox.Inbox.Run].
func Message(key string, payload any) oncebox.Message {
	body, isBytes := payload.([]byte)
	if !isBytes {
		body, _ = json.Marshal(payload)
	}
	return oncebox.Message{Subject: "test", Payload: body, Headers: map[string]string{"idempotency-key": key}, Deliveries: 1}
}

// RunUntilFinal runs a message again as JetStream would, without its pauses, until it has ended.
func RunUntilFinal(ctx context.Context, inbox *oncebox.Inbox, handler oncebox.Handler, message oncebox.Message) (oncebox.Verdict, error) {
	return untilFinal(func() (oncebox.Verdict, error) { return inbox.Run(ctx, handler, message) })
}

func untilFinal(run func() (oncebox.Verdict, error)) (oncebox.Verdict, error) {
	var failure error
	for range 20 {
		verdict, err := run()
		if err == nil && verdict.Name != "retry" && verdict.Name != "in_flight" {
			return verdict, nil
		}
		failure = errors.Join(err, errors.New(verdict.Reason))
		time.Sleep(20 * time.Millisecond)
	}
	return oncebox.Verdict{}, fmt.Errorf("the message has not ended after 20 runs: %w", failure)
}

// Template is a database with the schema of Oncebox and your own tables, of which each test gets a copy
// within milliseconds.
type Template struct{ url, name string }

// NewTemplate makes a template, for TestMain. The URL names a database from which others can be made; the
// program migrates; the statements make your tables. Drop it at the end.
func NewTemplate(ctx context.Context, databaseURL, program string, statements ...string) (*Template, error) {
	template := &Template{databaseURL, "oncebox_template_" + strings.ToLower(rand.Text()[:8])}
	if err := execute(ctx, databaseURL, "CREATE DATABASE "+template.name); err != nil {
		return nil, err
	}
	own := template.of(template.name)
	// All databases of a server share the roles; those of a template would outlive it.
	migrate := exec.CommandContext(ctx, program, "migrate", "--role-prefix", "oncebox", "--database-url", own)
	if said, err := migrate.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("migrate: %w: %s", err, said), template.Drop(ctx))
	}
	return template, execute(ctx, own, statements...)
}

// Drop drops the template.
func (t *Template) Drop(ctx context.Context) error {
	return execute(ctx, t.url, "DROP DATABASE IF EXISTS "+t.name+" WITH (FORCE)")
}

// Database is the URL of a fresh copy, which is dropped when the test has ended.
func (t *Template) Database(test testing.TB) string {
	name := "oncebox_test_" + strings.ToLower(rand.Text()[:8])
	if err := execute(context.Background(), t.url, "CREATE DATABASE "+name+" TEMPLATE "+t.name); err != nil {
		test.Fatal(err)
	}
	test.Cleanup(func() {
		if err := execute(context.Background(), t.url, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			test.Error(err)
		}
	})
	return t.of(name)
}

// Pool is a pool of connections to a database, which is closed when the test has ended.
func Pool(test testing.TB, databaseURL string) *pgxpool.Pool {
	pool, err := pgxpool.New(context.Background(), databaseURL)
	if err != nil {
		test.Fatal(err)
	}
	test.Cleanup(pool.Close)
	return pool
}

func (t *Template) of(name string) string {
	parsed, err := url.Parse(t.url)
	if err != nil {
		return t.url
	}
	parsed.Path = "/" + name
	return parsed.String()
}

func execute(ctx context.Context, databaseURL string, statements ...string) error {
	connection, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close(ctx) }()
	for _, statement := range statements {
		if _, err := connection.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}
