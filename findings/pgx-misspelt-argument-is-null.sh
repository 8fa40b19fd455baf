#!/usr/bin/env bash
# pgx v5.13.0 (Go) on PostgreSQL 18.4, pgx.NamedArgs
# Expected: a name in the SQL that the map lacks is an error
# Seen: it is sent as NULL: the event is stored without its key; pgx.StrictNamedArgs refuses
. "$(dirname "$0")/lib.sh"

postgres_start
sql -c "CREATE TABLE outbox (body text, ordering_key text)"
seen=$(go_run github.com/jackc/pgx/v5@v5.13.0 <<'GO'
package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

func main() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, "")
	if err != nil {
		panic(err)
	}
	args := map[string]any{"body": "placed", "orderingKey": "order-7"}
	insert := "INSERT INTO outbox VALUES (@body, @ordering_key)"
	_, err = conn.Exec(ctx, insert, pgx.NamedArgs(args))
	fmt.Println(err)
	_, err = conn.Exec(ctx, insert, pgx.StrictNamedArgs(args))
	fmt.Println(err != nil)
}
GO
sql -c "SELECT body, ordering_key IS NULL FROM outbox")
same "$seen" '<nil>
true
placed|t' "a name with a slip is NULL in the row, and the order of its key is lost"
