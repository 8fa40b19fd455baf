package oncebox

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Start is a saga to be started.
type Start struct {
	// Type is that of a registered definition.
	Type       string
	BusinessID string
	// Data are sent as JSON.
	Data any
	// Schema is "oncebox" when it is empty.
	Schema string
	// Version is that of the definition; 0 is the newest.
	Version int
}

// Started is a saga.
type Started struct {
	ID int64
	// Key is such as "4711:order".
	Key string
	// IsNew says that this call has started it.
	IsNew bool
}

// SagaRefused is the error of a start. The transaction is aborted.
type SagaRefused struct {
	// Reason is "business_id" (it cannot be part of a key), "data" (the definition does not read them),
	// "definition" (none of this type is registered) or "used" (the business id has been used before, with
	// other data or for another saga).
	Reason string
	err    error
}

func (s *SagaRefused) Error() string { return s.err.Error() }

// Unwrap is the error of the driver.
func (s *SagaRefused) Unwrap() error { return s.err }

// refusals are the reasons, by the SQLSTATE.
var refusals = map[string]string{"OB002": "business_id", "OB011": "data", "OB015": "definition", "OB016": "used"}

// StartSaga starts a saga in the caller's transaction. The same start again returns the same saga; a
// refusal is a [SagaRefused].
func StartSaga(ctx context.Context, tx pgx.Tx, start Start) (Started, error) {
	return startSaga(start, func(sql string, parameters ...any) row { return tx.QueryRow(ctx, sql, parameters...) })
}

// StartSagaSQL is [StartSaga] in a transaction of database/sql, with any driver of PostgreSQL.
func StartSagaSQL(ctx context.Context, tx SQLTransaction, start Start) (Started, error) {
	return startSaga(start, func(sql string, parameters ...any) row { return tx.QueryRowContext(ctx, sql, parameters...) })
}

func startSaga(start Start, query func(string, ...any) row) (started Started, err error) {
	data, err := json.Marshal(start.Data)
	if err != nil {
		return started, fmt.Errorf("encode the data of saga %s of %q: %w", start.Type, start.BusinessID, err)
	}
	sql := "SELECT id::text, key, is_new::text FROM {schema}.start_saga(type => $1::text, business_id => $2::text, data => $3::text::jsonb)"
	parameters := []any{start.Type, start.BusinessID, string(data)}
	if start.Version != 0 {
		sql = strings.TrimSuffix(sql, ")") + ", version => $4::text::int)"
		parameters = append(parameters, strconv.Itoa(start.Version))
	}
	var id, isNew string
	err = query(inSchema(sql, start.Schema), parameters...).Scan(&id, &started.Key, &isNew)
	if err == nil {
		started.IsNew = isNew == "true"
		started.ID, err = strconv.ParseInt(id, 10, 64)
		return started, err
	}
	err = fmt.Errorf("saga %s of %q is not started: %w", start.Type, start.BusinessID, err)
	if reason, isRefused := refusals[code(err)]; isRefused {
		err = &SagaRefused{reason, err}
	}
	return started, err
}
