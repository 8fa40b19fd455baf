// A handler that hides an error of PostgreSQL, with a reply and without: prints what becomes of each.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"oncebox"
)

func spoil(ctx context.Context, tx pgx.Tx, message oncebox.Message, reply any) (any, error) {
	if _, err := tx.Exec(ctx, "INSERT INTO charge (id, cents) VALUES ($1, 1)", message.Key); err != nil {
		return nil, err
	}
	_, _ = tx.Exec(ctx, "SELECT 1 / 0")
	return reply, nil
}

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	inbox := oncebox.NewInbox(pool, "spoiled:charge", oncebox.InboxOptions{AttemptsMax: 1})
	for _, message := range [][2]string{{"silent", "null"}, {"replying", "{}"}} {
		answer, err := inbox.Run(ctx, oncebox.JSON(spoil), oncebox.Message{
			Subject: "orders.placed",
			Payload: []byte(message[1]),
			Headers: map[string]string{"idempotency-key": message[0]},
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(message[0], answer.Name)
	}
}
