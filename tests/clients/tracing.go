// Handles messages in spans, and prints these: see tests/it/clients/tracing.rs.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"oncebox"
)

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

type spanKey struct{}

// trace stands for OpenTelemetry: it reads the parent, and hands the handler a context.
func trace(ctx context.Context, span oncebox.Span) (context.Context, func(string)) {
	parts := strings.Split(span.Headers["traceparent"], "-")
	id := fmt.Sprintf("%016x", time.Now().UnixNano())
	next := strings.Join([]string{"00", parts[1], id, "01"}, "-")
	return context.WithValue(ctx, spanKey{}, next), func(cause string) {
		if cause == "" {
			cause = "-"
		}
		line := []string{span.Name, "CONSUMER", parts[1], parts[2], id}
		for _, name := range slices.Sorted(maps.Keys(span.Attributes)) {
			line = append(line, fmt.Sprintf("%s=%v", name, span.Attributes[name]))
		}
		fmt.Println(strings.Join(append(line, cause), " "))
	}
}

func trigger(ctx context.Context, tx pgx.Tx, message oncebox.Message, what string) (any, error) {
	key, _ := oncebox.StepKey(message.Key, "next")
	headers := map[string]string{"traceparent": ctx.Value(spanKey{}).(string)}
	outgoing := oncebox.Outgoing{Key: key, Subject: "a.next", Payload: map[string]string{}, Headers: headers}
	if _, err := oncebox.Enqueue(ctx, tx, outgoing); err != nil {
		return nil, err
	}
	switch what {
	case "dead":
		return nil, oncebox.GiveUp("no use")
	case "retry":
		return nil, oncebox.RetryAfter(0)
	case "slow":
		<-ctx.Done()
		return nil, ctx.Err()
	case "fails":
		return nil, errors.New("as it was told")
	}
	return nil, nil
}

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	inbox := oncebox.NewInbox(pool, "tracing", oncebox.InboxOptions{Tracer: trace, HandlerTimeout: 2 * time.Second})
	for _, what := range []string{"done", "dead", "retry", "slow", "fails"} {
		headers := map[string]string{"idempotency-key": what, "traceparent": parent}
		message := oncebox.Message{Subject: "a.b", Payload: []byte(`"` + what + `"`), Headers: headers}
		if _, err := inbox.Run(ctx, oncebox.JSON(trigger), message); err != nil {
			log.Fatal(err)
		}
	}
}
