package oncebox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// SQLTx is the handler's transaction in the form of database/sql, for GORM, sqlc, sqlx and all others
// that take a [sql.Tx]. It ends with the context. Its Commit and Rollback fail, as those of tx do.
func SQLTx(ctx context.Context, tx pgx.Tx) (*sql.Tx, error) {
	database := sql.OpenDB(bridge{tx})
	context.AfterFunc(ctx, func() { _ = database.Close() })
	return database.BeginTx(ctx, nil)
}

// bridge is a driver of database/sql that has one connection, which is in a transaction already.
type bridge struct{ tx pgx.Tx }

func (b bridge) Connect(context.Context) (driver.Conn, error) { return b, nil }
func (b bridge) Driver() driver.Driver                        { return b }
func (b bridge) Open(string) (driver.Conn, error)             { return b, nil }
func (b bridge) Close() error                                 { return nil }
func (b bridge) Begin() (driver.Tx, error)                    { return b, nil }
func (b bridge) Commit() error                                { return errNotYours }
func (b bridge) Rollback() error                              { return errNotYours }

// BeginTx begins nothing, and so can have no options.
func (b bridge) BeginTx(_ context.Context, options driver.TxOptions) (driver.Tx, error) {
	if options != (driver.TxOptions{}) {
		return nil, errors.New("the transaction has begun already: its isolation level is READ COMMITTED")
	}
	return b, nil
}

// CheckNamedValue passes on values that pgx can write by itself.
func (b bridge) CheckNamedValue(value *driver.NamedValue) (err error) {
	if valuer, isValuer := value.Value.(driver.Valuer); isValuer {
		value.Value, err = driver.DefaultParameterConverter.ConvertValue(valuer)
	}
	return err
}

func (b bridge) ExecContext(ctx context.Context, query string, named []driver.NamedValue) (driver.Result, error) {
	tag, err := b.tx.Exec(ctx, query, values(named)...)
	return driver.RowsAffected(tag.RowsAffected()), err
}

func (b bridge) QueryContext(ctx context.Context, query string, named []driver.NamedValue) (driver.Rows, error) {
	rows, err := b.tx.Query(ctx, query, append([]any{pgx.QueryResultFormats{pgx.TextFormatCode}}, values(named)...)...)
	if err != nil {
		return nil, err
	}
	// An error of the statement comes before its first row.
	found := &bridgeRows{Rows: rows}
	if found.hasNext = rows.Next(); !found.hasNext && rows.Err() != nil {
		return nil, rows.Err()
	}
	return found, nil
}

func (b bridge) Prepare(query string) (driver.Stmt, error) { return bridgeStatement{b, query}, nil }

// bridgeStatement is its text: pgx prepares by itself.
type bridgeStatement struct {
	bridge
	query string
}

func (s bridgeStatement) NumInput() int { return -1 }
func (s bridgeStatement) Exec([]driver.Value) (driver.Result, error) {
	return nil, driver.ErrSkip // has ExecContext
}
func (s bridgeStatement) Query([]driver.Value) (driver.Rows, error) { return nil, driver.ErrSkip }
func (s bridgeStatement) ExecContext(ctx context.Context, named []driver.NamedValue) (driver.Result, error) {
	return s.bridge.ExecContext(ctx, s.query, named)
}
func (s bridgeStatement) QueryContext(ctx context.Context, named []driver.NamedValue) (driver.Rows, error) {
	return s.bridge.QueryContext(ctx, s.query, named)
}

func values(named []driver.NamedValue) []any {
	all := make([]any, len(named))
	for n, value := range named {
		all[n] = value.Value
	}
	return all
}

// bridgeRows are rows of texts, read as the types of database/sql.
type bridgeRows struct {
	pgx.Rows
	hasNext bool
}

func (r *bridgeRows) Columns() []string {
	fields := r.FieldDescriptions()
	names := make([]string, len(fields))
	for n, field := range fields {
		names[n] = field.Name
	}
	return names
}

func (r *bridgeRows) Close() error {
	r.Rows.Close()
	return r.Err()
}

func (r *bridgeRows) Next(row []driver.Value) (err error) {
	if !r.hasNext {
		if err = r.Err(); err == nil {
			err = io.EOF
		}
		return err
	}
	fields := r.FieldDescriptions()
	for n, raw := range r.RawValues() {
		if row[n], err = asValue(fields[n].DataTypeOID, raw); err != nil {
			return err
		}
	}
	r.hasNext = r.Rows.Next()
	return nil
}

// asValue reads a text of PostgreSQL. Types that database/sql does not have stay texts.
func asValue(oid uint32, raw []byte) (driver.Value, error) {
	if raw == nil {
		return nil, nil
	}
	text := string(raw)
	switch oid {
	case pgtype.BoolOID:
		return text == "t", nil
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID, pgtype.OIDOID:
		return strconv.ParseInt(text, 10, 64)
	case pgtype.Float4OID, pgtype.Float8OID:
		return strconv.ParseFloat(text, 64)
	case pgtype.ByteaOID:
		return hex.DecodeString(strings.TrimPrefix(text, `\x`))
	case pgtype.JSONOID, pgtype.JSONBOID:
		return []byte(text), nil
	case pgtype.DateOID, pgtype.TimestampOID, pgtype.TimestamptzOID:
		var found time.Time
		err := types.Scan(oid, pgtype.TextFormatCode, raw, &found)
		return found, err
	}
	return text, nil
}

// types read dates with any type map of the connection.
var types = pgtype.NewMap()
