package oncebox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Message is a message as it arrived. Names of headers are in lower case; different values of one are
// lines of its text.
type Message struct {
	Subject string
	Payload []byte
	Headers map[string]string
	// Origin is where the message is stored; nil for a message that is in no stream.
	Origin *Origin
	// Deliveries counts from 1.
	Deliveries int64
	// sent are the headers with their names and values as they came, for a dead letter; if it is nil,
	// Headers has them.
	sent map[string][]string
	// Key, Tenant and Scope, that of the inbox, are set for the handler.
	Key, Tenant, Scope string
}

// Origin is the place of a message in a stream.
type Origin struct {
	Stream   string
	Sequence uint64
	StoredAt time.Time
}

// Handler handles one message in the given transaction, which it can neither commit nor roll back.
// Its reply is committed with the key, and copies are answered with it; an error rolls back. See
// [GiveUp], [RetryAfter] and [Reject] for other results.
type Handler func(ctx context.Context, tx pgx.Tx, message Message) (reply any, err error)

// JSON makes a handler from a function that takes the decoded payload. A message whose payload does
// not decode becomes a dead letter.
func JSON[T any](handle func(ctx context.Context, tx pgx.Tx, message Message, data T) (any, error)) Handler {
	return func(ctx context.Context, tx pgx.Tx, message Message) (any, error) {
		data, err := decoded[T](message)
		if err != nil {
			return nil, err
		}
		return handle(ctx, tx, message, data)
	}
}

// LeasedJSON is JSON for a handler under a lease.
func LeasedJSON[T any](handle func(ctx context.Context, lease *Lease, data T) (any, error)) LeasedHandler {
	return func(ctx context.Context, lease *Lease, message Message) (any, error) {
		data, err := decoded[T](message)
		if err != nil {
			return nil, err
		}
		return handle(ctx, lease, data)
	}
}

func decoded[T any](message Message) (data T, err error) {
	if err = json.Unmarshal(message.Payload, &data); err != nil {
		// The text of the error may quote the payload.
		err = GiveUp("the payload does not decode: " + undecoded(err))
	}
	return data, err
}

// undecoded names the field and the types, and quotes nothing of the payload.
func undecoded(err error) string {
	if wrong, isType := errors.AsType[*json.UnmarshalTypeError](err); isType {
		kind, _, _ := strings.Cut(wrong.Value, " ") // of a number the number follows
		return fmt.Sprintf("field %q is a %s, and %s is wanted", wrong.Field, kind, wrong.Type)
	}
	if wrong, isSyntax := errors.AsType[*json.SyntaxError](err); isSyntax {
		return fmt.Sprintf("no JSON, at byte %d", wrong.Offset)
	}
	return fmt.Sprintf("%T", err)
}

// Reject is returned by a handler that rejects the message for good: its writes are committed, and
// copies get this reply. A pointer to one does the same.
type Reject struct{ Reply any }

// GiveUp is an error that a handler returns to roll back, give the message up, and record it as a
// dead letter.
func GiveUp(reason string) error { return verdict{errors.New(reason), "dead", 0} }

// RetryAfter is an error that a handler returns to roll back, and to be run again after that time, 24
// hours at most.
func RetryAfter(after time.Duration) error {
	return verdict{fmt.Errorf("the handler asked for a retry after %s", after), "retry", max(after, 0)}
}

// Snooze is an error that a handler returns to roll back, and to be run again after that time, 100 ms to
// an hour, which is no attempt: as when a system that it needs is away. See SnoozeMax of the options.
func Snooze(after time.Duration, reason string) error {
	return verdict{errors.New("snoozed: " + reason), "snooze", after}
}

// verdict is an error that decides about the message: dead, retry or snooze, after a time.
type verdict struct {
	error
	kind  string
	after time.Duration
}

// Verdict is the result of running a message.
type Verdict struct {
	// Name is handled, replayed, rejected, dead, mismatch, in_flight, retry or in_line; all but the
	// last three are final, and committed. One that is in_line waits in the database until a dead
	// letter is retried or discarded.
	Name string
	// Reply is the handler's reply as JSON, also when an earlier run gave it.
	Reply  json.RawMessage
	Reason string
	// After is the time until the next run.
	After time.Duration
}
