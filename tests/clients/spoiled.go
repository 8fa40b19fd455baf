// A handler that hides an error of PostgreSQL, or rolls back by itself, or does neither and meets a
// copy: prints what becomes of each message.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"oncebox"
)

func spoil(ctx context.Context, tx pgx.Tx, message oncebox.Message, reply any) (any, error) {
	if _, err := tx.Exec(ctx, "INSERT INTO charge (id, cents) VALUES ($1, 1)", message.Key); err != nil {
		return nil, err
	}
	statement := "SELECT 1 / 0"
	if strings.HasSuffix(message.Key, "rollback") {
		statement = "ROLLBACK"
	} else if message.Key == "sound" {
		statement = "SELECT 1"
	}
	_, _ = tx.Exec(ctx, statement)
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
	for _, key := range []string{"silent", "replying", "silent-rollback", "replying-rollback", "sound", "sound"} {
		payload := "{}"
		if strings.HasPrefix(key, "s") {
			payload = "null"
		}
		answer, err := inbox.Run(ctx, oncebox.JSON(spoil), oncebox.Message{
			Subject: "orders.placed",
			Payload: []byte(payload),
			Headers: map[string]string{"idempotency-key": key},
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(key, answer.Name)
	}
}
