package oncebox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Span is the run of a handler, for a tracer: that of docs/metrics.md.
type Span struct {
	// Name is "handle", or "handle_set".
	Name string
	// Attributes are texts, and int64 for oncebox.delivery and messaging.batch.message_count.
	Attributes map[string]any
	// Headers of the message, for a propagator: traceparent names the parent. A set has none.
	Headers map[string]string
	// Links are the headers of each message of a set, for a propagator: each traceparent names a span
	// that this one is linked with, since it cannot be a child of all.
	Links []map[string]string
}

// Tracer starts the span of a handler's run. The handler gets the context; end is called when it has
// returned, with an error.type if it left no effect. The README has one for OpenTelemetry.
type Tracer func(ctx context.Context, span Span) (handler context.Context, end func(errorType string))

// started starts a span. A tracer that panics costs no attempt: the run has no span then.
func (in *Inbox) started(ctx context.Context, span Span) (handler context.Context, end func(string)) {
	guard := func() {
		if panicked := recover(); panicked != nil {
			slog.Warn("the tracer panicked", "scope", in.scope, "panic", fmt.Sprint(panicked))
		}
	}
	defer guard()
	handler, end = ctx, func(string) {}
	traced, ended := in.options.Tracer(ctx, span)
	return traced, func(errorType string) {
		defer guard()
		ended(errorType)
	}
}

// traced is a handler whose runs have spans.
func (in *Inbox) traced(handler Handler) Handler {
	return func(ctx context.Context, tx pgx.Tx, message Message) (reply any, err error) {
		err = in.observed(ctx, Span{Name: "handle", Headers: message.Headers, Attributes: map[string]any{
			"messaging.destination.name": message.Subject, "messaging.message.id": message.Key,
			"oncebox.delivery": max(message.Deliveries, 1),
		}}, func(ctx context.Context) (err error) {
			reply, err = handler(ctx, tx, message)
			return err
		})
		return reply, err
	}
}

// tracedSet is a handler of sets whose runs have spans.
func (in *Inbox) tracedSet(handler SetHandler) SetHandler {
	return func(ctx context.Context, tx pgx.Tx, messages []Message) (replies []any, err error) {
		span := Span{Name: "handle_set", Attributes: map[string]any{"messaging.batch.message_count": int64(len(messages))}}
		for _, message := range messages {
			span.Links = append(span.Links, message.Headers)
		}
		err = in.observed(ctx, span, func(ctx context.Context) (err error) {
			replies, err = handler(ctx, tx, messages)
			return err
		})
		return replies, err
	}
}

// observed is a run in a span, if there is a tracer.
func (in *Inbox) observed(ctx context.Context, span Span, run func(context.Context) error) (err error) {
	if in.options.Tracer == nil {
		return run(ctx)
	}
	maps.Copy(span.Attributes, map[string]any{
		"messaging.system": "nats", "messaging.operation.name": "process", "messaging.operation.type": "process",
		"messaging.consumer.group.name": in.scope, "oncebox.scope": in.scope,
	})
	ctx, end := in.started(ctx, span)
	hasReturned := false
	defer func() {
		switch said, isSaid := errors.AsType[verdict](err); {
		case !hasReturned:
			end("panic")
		case errors.Is(err, ErrLeaseLost):
			end("lease-lost")
		case isSaid:
			end(strings.ReplaceAll(said.kind, "snooze", "retry"))
		case ctx.Err() != nil && err != nil:
			end("timeout")
		case err != nil:
			end(fmt.Sprintf("%T", err))
		default:
			end("")
		}
	}()
	err = run(ctx)
	hasReturned = true
	return err
}
