package oncebox

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var (
	errNotYours = errors.New("the inbox ends a handler's transaction: return from the handler to commit, or return an error to roll back")
	errEnded    = errors.New("the handler has ended: wait for all work with its transaction before it returns")
)

// handle is the transaction in the form that handlers get: only the inbox ends it, together with the
// key, and it can do nothing any more once the handler has returned.
type handle struct {
	pgx.Tx
	hasEnded *atomic.Bool
	isNested bool
}

func (h *handle) Begin(ctx context.Context) (pgx.Tx, error) {
	if h.hasEnded.Load() {
		return nil, errEnded
	}
	tx, err := h.Tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &handle{tx, h.hasEnded, true}, nil
}

func (h *handle) Commit(ctx context.Context) error   { return h.end(ctx, h.Tx.Commit) }
func (h *handle) Rollback(ctx context.Context) error { return h.end(ctx, h.Tx.Rollback) }

func (h *handle) end(ctx context.Context, end func(context.Context) error) error {
	switch {
	case h.hasEnded.Load():
		return errEnded
	case !h.isNested:
		return errNotYours
	}
	return end(ctx)
}

func (h *handle) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	if h.hasEnded.Load() {
		return 0, errEnded
	}
	return h.Tx.CopyFrom(ctx, table, columns, source)
}

func (h *handle) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	if h.hasEnded.Load() {
		return endedBatch{}
	}
	return h.Tx.SendBatch(ctx, batch)
}

func (h *handle) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if h.hasEnded.Load() {
		return nil, errEnded
	}
	return h.Tx.Prepare(ctx, name, sql)
}

func (h *handle) Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error) {
	if h.hasEnded.Load() {
		return pgconn.CommandTag{}, errEnded
	}
	return h.Tx.Exec(ctx, sql, arguments...)
}

func (h *handle) Query(ctx context.Context, sql string, arguments ...any) (pgx.Rows, error) {
	if h.hasEnded.Load() {
		return endedRows{}, errEnded
	}
	return h.Tx.Query(ctx, sql, arguments...)
}

func (h *handle) QueryRow(ctx context.Context, sql string, arguments ...any) pgx.Row {
	if h.hasEnded.Load() {
		return endedRows{}
	}
	return h.Tx.QueryRow(ctx, sql, arguments...)
}

// endedRows are the rows of a query that was not sent.
type endedRows struct{ pgx.Rows }

func (endedRows) Close()                                       {}
func (endedRows) Err() error                                   { return errEnded }
func (endedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (endedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (endedRows) Next() bool                                   { return false }
func (endedRows) Scan(...any) error                            { return errEnded }
func (endedRows) Values() ([]any, error)                       { return nil, errEnded }
func (endedRows) RawValues() [][]byte                          { return nil }

// endedBatch are the results of a batch that was not sent.
type endedBatch struct{ pgx.BatchResults }

func (endedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, errEnded }
func (endedBatch) Query() (pgx.Rows, error)         { return endedRows{}, errEnded }
func (endedBatch) QueryRow() pgx.Row                { return endedRows{} }
func (endedBatch) Close() error                     { return errEnded }
