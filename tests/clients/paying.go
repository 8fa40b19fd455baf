// The cashier of the examples in Go, for the same gateway, under the same keys: tests/it/leased/gateway.rs.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"oncebox"
)

type order struct {
	Order int64 `json:"order"`
	Cents int64 `json:"cents"`
}

type receipt struct {
	Number int64 `json:"number"`
}

type settled struct {
	Order   int64    `json:"order"`
	Numbers *[]int64 `json:"numbers"`
}

// One connection for each request: the client sends no request twice by itself.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func send(request *http.Request, answer any) (status int, err error) {
	response, err := client.Do(request)
	if dial, isDial := errors.AsType[*net.OpError](err); isDial && dial.Op == "dial" {
		return 0, oncebox.NotSent(err)
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return response.StatusCode, nil
	}
	return response.StatusCode, json.NewDecoder(response.Body).Decode(answer)
}

// pay calls the gateway, which acts once for a key on the page of charges, and each time on that of payouts.
func pay(page string, cents int64) func(context.Context, string) (receipt, error) {
	return func(ctx context.Context, key string) (made receipt, err error) {
		body := fmt.Sprintf(`{"reference": %q, "cents": %d}`, key, cents)
		request, err := http.NewRequestWithContext(ctx, "POST", "http://"+os.Getenv("GATEWAY")+page, bytes.NewReader([]byte(body)))
		if err != nil {
			return made, err
		}
		request.Header.Set("Idempotency-Key", key)
		request.GetBody = nil
		status, err := send(request, &made)
		switch {
		case err != nil || status == http.StatusOK:
			return made, err
		case status == http.StatusPaymentRequired:
			return made, oncebox.Rejected("card declined")
		}
		return made, fmt.Errorf("the gateway answers %d", status)
	}
}

func find(ctx context.Context, key string) (made receipt, found oncebox.Found, err error) {
	request, err := http.NewRequestWithContext(ctx, "GET", "http://"+os.Getenv("GATEWAY")+"/payouts/"+key, nil)
	if err != nil {
		return made, oncebox.Unknown, err
	}
	switch status, err := send(request, &made); {
	case err != nil:
		return made, oncebox.Unknown, err
	case status == http.StatusOK:
		return made, oncebox.Happened, nil
	case status == http.StatusNotFound:
		return made, oncebox.Absent, nil
	}
	return made, oncebox.Unknown, nil
}

func settle(ctx context.Context, lease *oncebox.Lease, is order) (any, error) {
	charge := oncebox.Effect[receipt]{Step: "charge", Timeout: time.Second, Call: pay("/charges", is.Cents), IsProviderIdempotent: true}
	charged, err := charge.Do(ctx, lease)
	if errors.Is(err, oncebox.ErrRejected) {
		return oncebox.Reject{Reply: settled{Order: is.Order}}, nil
	}
	if err != nil {
		return nil, err
	}
	payOut := oncebox.Effect[receipt]{
		Step: "pay-out", Timeout: time.Second, SettlesWithin: 4 * time.Second, Call: pay("/payouts", is.Cents), Reconcile: find,
	}
	paid, err := payOut.Do(ctx, lease)
	if err != nil {
		return nil, err
	}
	return settled{is.Order, &[]int64{charged.Number, paid.Number}}, nil
}

func finish(ctx context.Context, tx pgx.Tx, _ oncebox.Message, reply any) error {
	is, isSettled := reply.(settled)
	if !isSettled {
		return nil
	}
	_, err := tx.Exec(ctx, "INSERT INTO settlement (order_id, charge, payout) VALUES ($1, $2, $3)", is.Order, (*is.Numbers)[0], (*is.Numbers)[1])
	return err
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	config.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	connected, err := nats.Connect(os.Getenv("NATS_URL"), nats.MaxReconnects(-1))
	if err != nil {
		log.Fatal(err)
	}
	js, err := jetstream.New(connected)
	if err != nil {
		log.Fatal(err)
	}
	seconds, err := strconv.Atoi(os.Getenv("LEASE_SECONDS"))
	if err != nil {
		log.Fatal(err)
	}
	inbox := oncebox.NewInbox(pool, "cashier-service:settle", oncebox.InboxOptions{
		AttemptsMax: 1000, Backoff: 200 * time.Millisecond, BackoffMax: time.Second,
	})
	options := oncebox.ConsumerOptions{
		FilterSubject: os.Getenv("SUBJECT_PREFIX") + "orders.placed", Concurrency: 4, AckWait: 2 * time.Second,
	}
	if os.Getenv("ORDER") == "strict" {
		options.Order = oncebox.Strict
	}
	consumer := oncebox.NewConsumer(js, os.Getenv("STREAM"), "cashier", options)
	handler := oncebox.Leased{Handle: oncebox.LeasedJSON(settle), Finish: finish, Lease: time.Duration(seconds) * time.Second}
	if err := consumer.RunLeased(ctx, inbox, handler); err != nil {
		log.Fatal(err)
	}
}
