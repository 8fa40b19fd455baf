package oncebox

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// Outgoing is a message to be enqueued.
type Outgoing struct {
	Key, Subject string
	// Payload is sent unchanged if it is a []byte or a json.RawMessage, else as JSON.
	Payload any
	Headers map[string]string
	// OrderingKey is optional. Messages that share one stay in order.
	OrderingKey string
	// NotBefore, unless zero, is a time of the database's clock before which the message is not sent.
	NotBefore time.Time
	// Schema is "oncebox" when it is empty.
	Schema string
}

// Enqueue writes a message in the caller's transaction; a relay publishes it if and only if the
// transaction commits. It returns the message's id, or 0 when this very message is enqueued
// already; the same key with another subject or payload is a [pgconn.PgError] with code OB001.
//
// [pgconn.PgError]: https://pkg.go.dev/github.com/jackc/pgx/v5/pgconn#PgError
func Enqueue(ctx context.Context, tx pgx.Tx, message Outgoing) (id int64, err error) {
	return enqueue(message, func(sql string, parameters ...any) row { return tx.QueryRow(ctx, sql, parameters...) })
}

// SQLTransaction is a transaction of database/sql: a [sql.Tx], one of sqlx, or the ConnPool of GORM's
// statement.
type SQLTransaction interface {
	QueryRowContext(ctx context.Context, query string, arguments ...any) *sql.Row
	Commit() error
	Rollback() error
}

// EnqueueSQL is [Enqueue] in a transaction of database/sql, with any driver of PostgreSQL.
func EnqueueSQL(ctx context.Context, tx SQLTransaction, message Outgoing) (id int64, err error) {
	return enqueue(message, func(sql string, parameters ...any) row { return tx.QueryRowContext(ctx, sql, parameters...) })
}

type row interface{ Scan(...any) error }

func enqueue(message Outgoing, query func(string, ...any) row) (id int64, err error) {
	payload, err := body(message.Payload)
	if err != nil {
		return 0, fmt.Errorf("encode the payload of key %q: %w", message.Key, err)
	}
	parameters := []any{message.Key, message.Subject, bytea(payload), object(message.Headers), message.OrderingKey}
	call := "enqueue("
	if !message.NotBefore.IsZero() {
		call = "enqueue_at(not_before => $6::timestamptz, "
		parameters = append(parameters, message.NotBefore.UTC().Format(time.RFC3339Nano))
	}
	sql := "SELECT coalesce({schema}." + call + "key => $1::text, subject => $2::text, payload => $3::bytea," +
		" headers => $4::jsonb, ordering_key => nullif($5::text, '')), 0)::text"
	var text string
	err = query(inSchema(sql, message.Schema), parameters...).Scan(&text)
	if err == nil {
		id, err = strconv.ParseInt(text, 10, 64)
	}
	return id, err
}

// EnqueueAll is [Enqueue] for up to 10,000 messages in one call: their ids in this order, and 0 for each
// that is enqueued already. None may have a NotBefore, and all have one schema.
func EnqueueAll(ctx context.Context, tx pgx.Tx, messages []Outgoing) (ids []int64, err error) {
	return enqueueAll(messages, func(sql string, parameters ...any) row { return tx.QueryRow(ctx, sql, parameters...) })
}

// EnqueueAllSQL is [EnqueueAll] in a transaction of database/sql.
func EnqueueAllSQL(ctx context.Context, tx SQLTransaction, messages []Outgoing) (ids []int64, err error) {
	return enqueueAll(messages, func(sql string, parameters ...any) row { return tx.QueryRowContext(ctx, sql, parameters...) })
}

func enqueueAll(messages []Outgoing, query func(string, ...any) row) (ids []int64, err error) {
	if len(messages) == 0 {
		return nil, nil
	}
	var keys, subjects, payloads, headers, orderingKeys []string
	for _, message := range messages {
		payload, err := body(message.Payload)
		if err != nil {
			return nil, fmt.Errorf("encode the payload of key %q: %w", message.Key, err)
		}
		if message.Schema != messages[0].Schema {
			return nil, fmt.Errorf("key %q is for schema %q, and others are for %q: enqueue them by themselves",
				message.Key, message.Schema, messages[0].Schema)
		}
		if !message.NotBefore.IsZero() {
			return nil, fmt.Errorf("key %q has a NotBefore: enqueue it by itself", message.Key)
		}
		keys, subjects, payloads = append(keys, message.Key), append(subjects, message.Subject), append(payloads, bytea(payload))
		headers, orderingKeys = append(headers, object(message.Headers)), append(orderingKeys, message.OrderingKey)
	}
	sql := "SELECT to_json(array_agg(coalesce(e.id, 0) ORDER BY e.n))::text" +
		" FROM {schema}.enqueue_all(keys => $1::text[], subjects => $2::text[], payloads => $3::bytea[], headers => $4::jsonb[]," +
		" ordering_keys => ARRAY(SELECT nullif(o.key, '') FROM unnest($5::text[]) WITH ORDINALITY AS o (key, n) ORDER BY o.n))" +
		" WITH ORDINALITY AS e (key, id, n)"
	var text string
	err = query(inSchema(sql, messages[0].Schema), array(keys), array(subjects), array(payloads), array(headers), array(orderingKeys)).Scan(&text)
	if err == nil {
		err = json.Unmarshal([]byte(text), &ids)
	}
	return ids, err
}

// CancelDelayed gives a delayed message up in this transaction. It is false when no message of this
// key waits. The schema is "oncebox" when it is empty.
func CancelDelayed(ctx context.Context, tx pgx.Tx, key, schema string) (isCancelled bool, err error) {
	var text string
	err = tx.QueryRow(ctx, inSchema("SELECT {schema}.cancel_delayed($1::text)::text", schema), key).Scan(&text)
	return text == "true", err
}

func body(payload any) ([]byte, error) {
	switch bytes := payload.(type) {
	case []byte:
		return bytes, nil
	case json.RawMessage:
		return bytes, nil
	}
	return json.Marshal(payload)
}
