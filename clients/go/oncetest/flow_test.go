package oncetest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"oncebox"
	"oncebox/oncetest"
)

const saga = `
name = "order"
version = 1
[data]
"/order" = "integer"
[[step]]
name = "reserve"
subject = "NAME.do.reserve"
scope = "reserve"
no_compensation = true
payload = { from = "/data" }
`

func TestAFlowUntilAllIsDoneAndWhatIsLeft(t *testing.T) {
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	program, database, name := os.Getenv("ONCEBOX"), template.Database(t), fmt.Sprintf("flow%d", time.Now().UnixNano())
	connection, err := nats.Connect(os.Getenv("NATS_URL"))
	must(err)
	defer connection.Close()
	stream, err := jetstream.New(connection)
	must(err)
	file := filepath.Join(t.TempDir(), "order.toml")
	must(os.WriteFile(file, []byte(strings.ReplaceAll(saga, "NAME", name)), 0o600))
	pool := oncetest.Pool(t, database)
	replier, done := oncebox.Replier{Allowed: []string{name + ".replies"}}, sync.Map{}
	charge := func(ctx context.Context, tx pgx.Tx, message oncebox.Message) (any, error) {
		done.Store(message.Key, true)
		var order struct{ Order int }
		if err := json.Unmarshal(message.Payload, &order); err != nil || order.Order == 13 {
			return nil, oncebox.GiveUp("a bad number")
		}
		if strings.HasSuffix(message.Subject, ".placed") {
			ship := oncebox.Outgoing{Key: message.Key + ":ship", Subject: name + ".do.shipped", Payload: map[string]int{}}
			if _, err := oncebox.Enqueue(ctx, tx, ship); err != nil {
				return nil, err
			}
		}
		_, err := replier.Reply(ctx, tx, message, nil)
		return nil, err
	}
	flow := func() *oncetest.Flow {
		consumer := oncebox.NewConsumer(stream, name, "charge", oncebox.ConsumerOptions{FilterSubject: name + ".do.>", Concurrency: 2})
		inbox := oncebox.NewInbox(pool, "reserve", oncebox.InboxOptions{})
		flow := &oncetest.Flow{DatabaseURL: database, NATSURL: os.Getenv("NATS_URL"), Program: program, Streams: []string{name + "=" + name + ".>"}}
		return flow.Consumer(name+"/charge", func(ctx context.Context) error { return consumer.Run(ctx, inbox, charge) })
	}
	enqueue := func(key string, order int) {
		must(pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := oncebox.Enqueue(ctx, tx, oncebox.Outgoing{Key: key, Subject: name + ".do.placed", Payload: map[string]int{"order": order}})
			return err
		}))
	}
	apply := exec.Command(program, "saga", "apply", file, "--reply-to", name+".replies", "--database-url", database)
	if said, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	enqueue("k", 1)
	must(pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := oncebox.StartSaga(ctx, tx, oncebox.Start{Type: "order", BusinessID: "4711", Data: map[string]int{"order": 1}})
		return err
	}))
	leading := flow().Command(name+"/oncebox-saga-replies", program, "saga", "run", file, "--reply-to", name+".replies")
	must(leading.RunUntilQuiet(ctx, 30*time.Second))
	for _, key := range []string{"k", "k:ship", "4711:order:reserve"} {
		if _, isDone := done.Load(key); !isDone {
			t.Error(key)
		}
	}
	var state string
	must(pool.QueryRow(ctx, "SELECT state FROM oncebox.saga").Scan(&state))
	if state != "completed" {
		t.Error(state)
	}
	enqueue("bad", 13)
	if err := flow().RunUntilQuiet(ctx, 30*time.Second); !says(err, "bad.*a bad number") {
		t.Error(err)
	}
	lame := flow().Command(name+"/lame", "sh", "-c", "echo its stream is needed >&2; exit 1")
	if err := lame.RunUntilQuiet(ctx, 30*time.Second); !says(err, "(?s)the consumer .*/lame has ended: exit status 1.*is needed") {
		t.Error(err)
	}
}

func says(err error, pattern string) bool {
	return err != nil && regexp.MustCompile(pattern).MatchString(err.Error())
}
