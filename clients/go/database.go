package oncebox

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// database is a pool, and the schema with the tables.
type database struct {
	pool   *pgxpool.Pool
	schema string
}

func (d database) sql(text string) string { return inSchema(text, d.schema) }

// register records a scope, and how long its keys are kept: for ever if there is no time.
func (d database) register(ctx context.Context, scope string, retention time.Duration, kind, mode string) error {
	given := arguments{"scope text", scope, "kind text", kind, "mode text", mode}
	if retention > 0 {
		given = append(given, "retention interval", interval(retention))
	}
	_, err := d.call(ctx, "register_scope", given)
	return err
}

// call calls a function in a transaction of its own, and returns its answer as a text.
func (d database) call(ctx context.Context, function string, given arguments) (answer string, err error) {
	call, values := given.written(function)
	err = d.ask(ctx, &answer, "SELECT coalesce(("+call+")::text, '')", values...)
	return answer, err
}

// ask sends a statement in a transaction of its own, and reads the text that it answers.
func (d database) ask(ctx context.Context, answer *string, statement string, parameters ...any) error {
	return d.read(ctx, stepLimit, statement, parameters, answer)
}

// read is ask for several texts, within a time, also when the context has ended.
func (d database) read(ctx context.Context, limit time.Duration, statement string, parameters []any, answers ...any) error {
	return d.readIn(context.WithoutCancel(ctx), limit, statement, parameters, answers...)
}

func (d database) readIn(ctx context.Context, limit time.Duration, statement string, parameters []any, answers ...any) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	connection, err := connect(ctx, d.pool)
	if err != nil {
		return err
	}
	defer connection.Release()
	if err = connection.QueryRow(ctx, d.sql(statement), parameters...).Scan(answers...); isSpoiling(err) {
		_ = connection.Conn().Close(canceled())
	}
	return err
}

// connect waits for a connection of the pool, and says so when that takes long.
func connect(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	defer time.AfterFunc(waitMax, func() {
		why := "PostgreSQL does not answer"
		if used, most := pool.Stat().AcquiredConns(), pool.Config().MaxConns; used >= most {
			why = fmt.Sprintf("all %d connections of the pool are in use: make its MaxConns as large as Concurrency, or larger", most)
		}
		slog.Warn("no connection yet", "after", waitMax, "reason", why)
	}).Stop()
	connection, err := pool.Acquire(ctx)
	if err != nil {
		err = fmt.Errorf("get a connection: %w", err)
	}
	return connection, err
}

// arguments are names of parameters, each with its type, and values in turn.
type arguments []any

// written is a call of a function in the schema, and its values.
func (given arguments) written(function string) (call string, values []any) {
	var texts []string
	for n := 0; n < len(given); n += 2 {
		name, kind, _ := strings.Cut(given[n].(string), " ")
		values = append(values, given[n+1])
		texts = append(texts, fmt.Sprintf("%s => $%d::%s", name, len(values), kind))
	}
	return "{schema}." + function + "(" + strings.Join(texts, ", ") + ")", values
}

func inSchema(text, schema string) string {
	return strings.ReplaceAll(text, "{schema}", pgx.Identifier{cmp.Or(schema, "oncebox")}.Sanitize())
}
