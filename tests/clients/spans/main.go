// Handles messages in spans of OpenTelemetry, through the function of the README, and prints these: see
// tests/it/clients/tracing.rs.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"oncebox"
)

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func trigger(ctx context.Context, tx pgx.Tx, message oncebox.Message, what string) (any, error) {
	key, _ := oncebox.StepKey(message.Key, "next")
	headers := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, headers)
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
	spans := tracetest.NewInMemoryExporter()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)))
	inbox := oncebox.NewInbox(pool, "tracing", oncebox.InboxOptions{Tracer: traced, HandlerTimeout: 2 * time.Second})
	for _, what := range []string{"done", "dead", "retry", "slow", "fails"} {
		headers := map[string]string{"idempotency-key": what, "traceparent": parent}
		message := oncebox.Message{Subject: "a.b", Payload: []byte(`"` + what + `"`), Headers: headers}
		if _, err := inbox.Run(ctx, oncebox.JSON(trigger), message); err != nil {
			log.Fatal(err)
		}
	}
	if err := handleSets(ctx, inbox); err != nil {
		log.Fatal(err)
	}
	for n, span := range spans.GetSpans() {
		if n < 5 || span.Name == "handle_set" {
			fmt.Println(line(span))
		}
	}
}

// handleSets handles the messages of the stream as sets, of which the first fails.
func handleSets(ctx context.Context, inbox *oncebox.Inbox) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	client, err := nats.Connect(os.Getenv("NATS_URL"))
	if err != nil {
		return err
	}
	defer client.Close()
	js, err := jetstream.New(client)
	if err != nil {
		return err
	}
	wanted, err := strconv.Atoi(os.Getenv("MESSAGES"))
	if err != nil {
		return err
	}
	seen, hasFailed := map[string]bool{}, false
	consumer := oncebox.NewConsumer(js, os.Getenv("STREAM"), "tracing", oncebox.ConsumerOptions{Batch: 16, Concurrency: 1})
	return consumer.RunSet(ctx, inbox, func(_ context.Context, _ pgx.Tx, messages []oncebox.Message) ([]any, error) {
		if len(messages) > 1 && !hasFailed {
			hasFailed = true
			return nil, errors.New("as it was told")
		}
		for _, message := range messages {
			seen[message.Key] = true
		}
		if len(seen) == wanted {
			stop()
		}
		return nil, nil
	})
}

func line(span tracetest.SpanStub) string {
	context, cause := span.SpanContext, "-"
	place := []string{context.TraceID().String(), span.Parent.SpanID().String()}
	if !span.Parent.IsValid() {
		linked := map[string]bool{}
		for _, link := range span.Links {
			linked[link.SpanContext.TraceID().String()+":"+link.SpanContext.SpanID().String()] = true
		}
		place = append([]string{strconv.Itoa(len(span.Links))}, slices.Sorted(maps.Keys(linked))...)
	}
	words := slices.Concat([]string{span.Name, strings.ToUpper(span.SpanKind.String())}, place, []string{context.SpanID().String()})
	attributes := map[string]string{}
	for _, attribute := range span.Attributes {
		attributes[string(attribute.Key)] = attribute.Value.Emit()
	}
	if said, isSaid := attributes["error.type"]; isSaid && span.Status.Code == codes.Error {
		cause = said
	}
	delete(attributes, "error.type")
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		words = append(words, name+"="+attributes[name])
	}
	return strings.Join(append(words, cause), " ")
}
