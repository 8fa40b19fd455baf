package oncetest_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"oncebox"
	"oncebox/oncetest"
)

var template *oncetest.Template

func TestMain(m *testing.M) {
	ctx := context.Background()
	if os.Getenv("ONCEBOX") == "" {
		return // the tests of the project say where servers and the program are
	}
	var err error
	template, err = oncetest.NewTemplate(ctx, os.Getenv("DATABASE_URL"), os.Getenv("ONCEBOX"), "CREATE TABLE charge (key text, cents bigint)")
	if err != nil {
		log.Fatal(err)
	}
	code := m.Run()
	if err := template.Drop(ctx); err != nil {
		log.Fatal(err)
	}
	os.Exit(code)
}

func TestWhichMessagesATransactionHasEnqueued(t *testing.T) {
	ctx := context.Background()
	pool := oncetest.Pool(t, template.Database(t))
	enqueue := func(tx pgx.Tx, outgoing oncebox.Outgoing) {
		t.Helper()
		if _, err := oncebox.Enqueue(ctx, tx, outgoing); err != nil {
			t.Fatal(err)
		}
	}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		enqueue(tx, oncebox.Outgoing{Key: "before", Subject: "a.b", Payload: 1})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	notBefore := time.Date(2035, 1, 1, 0, 0, 0, 0, time.UTC)
	enqueue(tx, oncebox.Outgoing{Key: "k:pay", Subject: "a.pay", Payload: []byte(`{"cents":7}`), OrderingKey: "o", Headers: map[string]string{"A": "b"}})
	enqueue(tx, oncebox.Outgoing{Key: "k:later", Subject: "a.later", Payload: []byte{255}, NotBefore: notBefore})
	found, err := oncetest.Messages(ctx, tx)
	expected := []oncetest.Enqueued{
		{Key: "k:pay", Subject: "a.pay", OrderingKey: "o", Payload: []byte(`{"cents":7}`), Headers: map[string]string{"A": "b"}, NotBefore: time.Time{}.UTC()},
		{Key: "k:later", Subject: "a.later", Payload: []byte{255}, Headers: map[string]string{}, NotBefore: notBefore},
	}
	if err != nil || !reflect.DeepEqual(found, expected) {
		t.Errorf("%v, %v", found, err)
	}
}

func TestAHandlerThroughCrashes(t *testing.T) {
	for _, isBad := range []bool{false, true} {
		database := template.Database(t)
		own := oncetest.Pool(t, database)
		crashes := oncetest.Crashes{
			Inbox:   func(pool *pgxpool.Pool) *oncebox.Inbox { return oncebox.NewInbox(pool, "test", oncebox.InboxOptions{}) },
			Payload: func(string) any { return map[string]int{"cents": 7} },
			Handler: func(ctx context.Context, tx pgx.Tx, message oncebox.Message) (any, error) {
				insert := "INSERT INTO charge (key, cents) VALUES ($1, 7)"
				if isBad {
					_, err := own.Exec(ctx, insert, message.Key)
					return nil, err
				}
				_, err := tx.Exec(ctx, insert, message.Key)
				return nil, err
			},
			Effects: func(key string) string {
				var cents int64
				if err := own.QueryRow(context.Background(), "SELECT sum(cents)::bigint FROM charge WHERE key = $1", key).Scan(&cents); err != nil {
					t.Fatal(err)
				}
				return fmt.Sprint(cents)
			},
		}
		wrong, expected := crashes.Run(t, database), []string(nil)
		if isBad {
			expected = []string{"crash-before-commit: 14 instead of 7"}
		}
		if !reflect.DeepEqual(wrong, expected) {
			t.Errorf("%v", wrong)
		}
	}
}

func TestALeasedHandlerThroughCrashesAtEachStatement(t *testing.T) {
	for _, isBad := range []bool{false, true} {
		database := template.Database(t)
		own := oncetest.Pool(t, database)
		charges := map[string]int{} // at a provider that charges at each call
		effect := oncebox.Effect[string]{
			Step: "charge",
			Call: func(_ context.Context, key string) (string, error) {
				charges[key]++
				return "receipt", nil
			},
			IsProviderIdempotent: isBad,
		}
		if !isBad {
			effect.Reconcile = func(_ context.Context, key string) (string, oncebox.Found, error) {
				if charges[key] > 0 {
					return "receipt", oncebox.Happened, nil
				}
				return "", oncebox.Absent, nil
			}
		}
		wrong := oncetest.LeasedCrashes{
			Inbox: func(pool *pgxpool.Pool) *oncebox.Inbox {
				return oncebox.NewInbox(pool, "leased:test", oncebox.InboxOptions{})
			},
			Payload: func(string) any { return map[string]int{"cents": 7} },
			Handler: oncebox.Leased{
				Handle: func(ctx context.Context, lease *oncebox.Lease, _ oncebox.Message) (any, error) {
					return effect.Do(ctx, lease)
				},
				Finish: func(ctx context.Context, tx pgx.Tx, message oncebox.Message, _ any) error {
					_, err := tx.Exec(ctx, "INSERT INTO charge (key, cents) VALUES ($1, 7)", message.Key)
					return err
				},
			},
			Effects: func(key string) string {
				var cents int64
				if err := own.QueryRow(context.Background(), "SELECT sum(cents)::bigint FROM charge WHERE key = $1", key).Scan(&cents); err != nil {
					t.Fatal(err)
				}
				return fmt.Sprintf("%d cents, %d charges", cents, charges[key+":charge"])
			},
		}.Run(t, database)
		expected := []string(nil)
		if isBad {
			expected = []string{"crash-before-statement-3: 7 cents, 2 charges instead of 7 cents, 1 charges"}
		}
		if !reflect.DeepEqual(wrong, expected) {
			t.Errorf("%q", wrong)
		}
	}
}
