// An inbox whose pool has no connection at first: prints how its message ends, then and the next time.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"oncebox"
)

func main() {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	refused := false
	config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
		if refused {
			return nil
		}
		refused = true
		return errors.New("too many connections")
	}
	config.MinConns, config.MaxConns = 0, 1
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	inbox := oncebox.NewInbox(pool, "unreachable:test", oncebox.InboxOptions{AttemptsMax: 1})
	message := oncebox.Message{Subject: "orders.placed", Headers: map[string]string{"idempotency-key": "first"}}
	for range 2 {
		answer, err := inbox.Run(ctx, func(context.Context, pgx.Tx, oncebox.Message) (any, error) { return nil, nil }, message)
		fmt.Println(answer.Name, err)
	}
}
