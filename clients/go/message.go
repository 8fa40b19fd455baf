package oncebox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// Message is a message as it arrived. Names of headers are in lower case.
type Message struct {
	Subject string
	Payload []byte
	Headers map[string]string
	// Origin is where it is stored; nil for one that is in no stream.
	Origin *Origin
	// Deliveries counts from 1.
	Deliveries int64
	// Key and Tenant are set for the handler.
	Key, Tenant string
}

// Origin says where in which stream a message is stored.
type Origin struct {
	Stream   string
	Sequence uint64
	StoredAt time.Time
}

// Handler handles one message, in the transaction that it gets, which it can neither commit nor
// roll back. What it returns is committed with the key and is what copies are answered; an error
// rolls back. [GiveUp], [RetryAfter] and [Reject] say more.
type Handler func(ctx context.Context, tx pgx.Tx, message Message) (reply any, err error)

// JSON makes a handler of one that takes the decoded payload. A message whose payload is not this
// JSON ends as a dead letter.
func JSON[T any](handle func(ctx context.Context, tx pgx.Tx, message Message, data T) (any, error)) Handler {
	return func(ctx context.Context, tx pgx.Tx, message Message) (any, error) {
		var data T
		if err := json.Unmarshal(message.Payload, &data); err != nil {
			// Its text may quote the payload.
			return nil, GiveUp(fmt.Sprintf("the payload does not decode: %T", err))
		}
		return handle(ctx, tx, message, data)
	}
}

// Reject is returned by a handler that says no for good: its writes are committed, and copies get
// this reply.
type Reject struct{ Reply any }

// GiveUp is an error of a handler: roll back, give the message up, and record it as a dead letter.
func GiveUp(reason string) error { return verdict{reason: reason} }

// RetryAfter is an error of a handler: roll back, and run again after that time.
func RetryAfter(after time.Duration) error {
	return verdict{reason: fmt.Sprintf("the handler asked for a retry after %s", after), isRetry: true, after: after}
}

type verdict struct {
	reason  string
	isRetry bool
	after   time.Duration
}

func (v verdict) Error() string { return v.reason }

// Answer is what became of a message.
type Answer struct {
	// Name is new, replayed, rejected, dead, mismatch, in_flight or retry; all but the last two are
	// final, and committed.
	Name string
	// Reply is what the handler answered, now or the first time, as JSON.
	Reply  json.RawMessage
	Reason string
	// After is the time until the next run.
	After time.Duration
}

// uncommitted is the transaction as handlers get it: the inbox ends it, with the key.
type uncommitted struct{ pgx.Tx }

var errNotYours = errors.New("a handler's transaction is ended by its inbox: return, with an error to roll back")

func (uncommitted) Commit(context.Context) error   { return errNotYours }
func (uncommitted) Rollback(context.Context) error { return errNotYours }

// id is the one that a relay has sent along, or NULL.
func (m Message) id() any {
	if id, err := strconv.ParseUint(m.Headers["oncebox-id"], 10, 63); err == nil {
		return id
	}
	return nil
}

// bytes is the payload, which is never NULL in SQL.
func (m Message) bytes() []byte { return append([]byte{}, m.Payload...) }

// parameters are NULLs for a message that is in no stream.
func (o *Origin) parameters() []any {
	if o == nil {
		return []any{nil, nil, nil}
	}
	return []any{o.Stream, o.Sequence, o.StoredAt}
}
