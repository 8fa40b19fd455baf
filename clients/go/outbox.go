package oncebox

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Outgoing is a message to be enqueued.
type Outgoing struct {
	Key, Subject string
	// Payload is sent unchanged if it is a []byte, else as JSON.
	Payload any
	Headers map[string]string
	// OrderingKey is optional. Messages that share one stay in order.
	OrderingKey string
	// Schema is "oncebox" when it is empty.
	Schema string
}

// Enqueue writes a message in the caller's transaction; a relay publishes it if and only if the
// transaction commits. It returns the message's id, or 0 when the same message is already enqueued;
// the same key with another subject or payload is a [pgconn.PgError] with code OB001.
//
// [pgconn.PgError]: https://pkg.go.dev/github.com/jackc/pgx/v5/pgconn#PgError
func Enqueue(ctx context.Context, tx pgx.Tx, message Outgoing) (int64, error) {
	payload, isBytes := message.Payload.([]byte)
	if !isBytes {
		var err error
		if payload, err = json.Marshal(message.Payload); err != nil {
			return 0, fmt.Errorf("encode the payload of key %q: %w", message.Key, err)
		}
	}
	sql := "SELECT coalesce({schema}.enqueue($1, $2, $3, coalesce($4, '{}'::jsonb), nullif($5, '')), 0)"
	row := tx.QueryRow(ctx, inSchema(sql, message.Schema),
		message.Key, message.Subject, payload, message.Headers, message.OrderingKey)
	var id int64
	err := row.Scan(&id)
	return id, err
}
