package oncebox

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// How long it may take to get a connection, and how long each step before and after the handler
	// may take.
	stepLimit = 30 * time.Second
	// A wait for a connection is logged after this time.
	waitMax = 10 * time.Second
	ended   = "the handler ended the transaction by itself"
	aborted = "the transaction was aborted by an error that the handler did not return"
)

// transaction has the marks of the transaction that a handler writes through.
type transaction struct {
	// isBegun says whether there was a connection: without one nothing was attempted.
	isBegun bool
	// xid is the id of the transaction that has claimed the key.
	xid string
	// session has the settings of the session when the handler began, sessionThen just before COMMIT.
	session, sessionThen string
	// isUnsure says that COMMIT has been sent, and PostgreSQL's answer is lost.
	isUnsure bool
	// isSpoiled says that the server refuses this connection's work.
	isSpoiled bool
	// isClosed says that its connection was closed.
	isClosed bool
}

// within takes a step with a connection, which is fit for others when it is given back.
func (current *transaction) within(ctx context.Context, pool *pgxpool.Pool, step func(context.Context, *pgxpool.Conn) error) error {
	short, cancel := limited(ctx)
	defer cancel()
	connection, err := connect(short, pool)
	if err != nil {
		return err
	}
	*current = transaction{isBegun: true}
	defer release(ctx, connection, current)
	err = step(short, connection)
	current.isSpoiled = isSpoiling(err)
	return err
}

// guarded calls a handler with a transaction that it cannot end, for a time. A panic becomes an error,
// and so does an error that panics when it is read.
func guarded(ctx context.Context, limit time.Duration, tx pgx.Tx, key string, call func(context.Context, pgx.Tx) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	given := &handle{Tx: tx, hasEnded: &atomic.Bool{}}
	defer func() {
		given.hasEnded.Store(true)
		if panicked := recover(); panicked != nil {
			err = asError(panicked, key)
		}
	}()
	if err = call(ctx, given); err != nil {
		_ = err.Error()
	}
	return err
}

// release rolls an open transaction back. It closes a connection where that fails, and one that the
// handler has changed for all later messages.
func release(ctx context.Context, connection *pgxpool.Conn, current *transaction) {
	defer connection.Release()
	defer func() { current.isClosed = connection.Conn().IsClosed() }()
	if current.isSpoiled {
		_ = connection.Conn().Close(canceled())
		return
	}
	isOpen := connection.Conn().PgConn().TxStatus() != 'I'
	if !isOpen && (current.session == "" || current.session == current.sessionThen) {
		return
	}
	ctx, cancel := limited(ctx)
	defer cancel()
	batch := &pgx.Batch{}
	batch.Queue("ROLLBACK")
	batch.Queue("SELECT " + session)
	results := connection.SendBatch(ctx, batch)
	_, _ = results.Exec()
	var found string
	err := results.QueryRow().Scan(&found)
	if err = cmp.Or(err, results.Close()); err != nil || current.session != "" && found != current.session {
		_ = connection.Conn().Close(ctx)
	}
}

// commit settles, unless there is nothing to settle, and commits, if this still is the transaction that
// made the claim: all in one round trip.
func commit(ctx context.Context, tx pgx.Tx, current *transaction, settle string, parameters ...any) error {
	ctx, cancel := limited(ctx)
	defer cancel()
	if err := checkOpen(tx); err != nil {
		return err
	}
	batch := &pgx.Batch{}
	check := "SELECT CASE WHEN pg_current_xact_id_if_assigned()::text = $1::text THEN " + session +
		" ELSE concat('" + ended + "', pg_current_xact_id_if_assigned())::int::text END"
	batch.Queue(check, current.xid)
	if settle != "" {
		batch.Queue(settle, parameters...)
	}
	batch.Queue("COMMIT") // not executed after an error
	current.isUnsure = true
	results := tx.SendBatch(ctx, batch)
	err := results.QueryRow().Scan(&current.sessionThen)
	err = cmp.Or(err, results.Close())
	refused, isRefused := errors.AsType[*pgconn.PgError](err)
	current.isUnsure = err != nil && !isRefused
	if isRefused && strings.Contains(refused.Message, ended) {
		return errors.New(ended)
	}
	return err
}

// checkOpen fails unless the transaction is open, without an error and without a statement under way.
func checkOpen(tx pgx.Tx) error {
	switch connection := tx.Conn().PgConn(); {
	case connection.IsBusy():
		return errors.New("the handler has ended, and a statement that it did not finish goes on")
	case connection.TxStatus() == 'I':
		return errors.New(ended)
	case connection.TxStatus() == 'E':
		// COMMIT would be a silent ROLLBACK.
		return errors.New(aborted)
	}
	return nil
}

// limited is the context of a step before or after the handler. It does not end with ctx, so that a
// drain finishes the step.
func limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), stepLimit)
}
