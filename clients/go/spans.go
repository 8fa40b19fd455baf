package oncebox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Span is the run of a handler, for a tracer: that of docs/metrics.md.
type Span struct {
	// Name is "handle".
	Name string
	// Attributes are texts, and int64 for oncebox.delivery.
	Attributes map[string]any
	// Headers of the message, for a propagator: traceparent names the parent.
	Headers map[string]string
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

// traced is a handler whose runs have spans, if there is a tracer.
func (in *Inbox) traced(handler Handler) Handler {
	if in.options.Tracer == nil {
		return handler
	}
	return func(ctx context.Context, tx pgx.Tx, message Message) (reply any, err error) {
		ctx, end := in.started(ctx, Span{"handle", map[string]any{
			"messaging.system": "nats", "messaging.operation.name": "process", "messaging.operation.type": "process",
			"messaging.consumer.group.name": in.scope, "messaging.destination.name": message.Subject,
			"messaging.message.id": message.Key, "oncebox.scope": in.scope, "oncebox.delivery": max(message.Deliveries, 1),
		}, message.Headers})
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
		reply, err = handler(ctx, tx, message)
		hasReturned = true
		return reply, err
	}
}
