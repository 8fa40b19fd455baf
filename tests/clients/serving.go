// A shop with the HTTP layer, whose handler does as the header x-do says: see
// tests/it/clients/serving.rs.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"oncebox"
)

const insert = "INSERT INTO effect (key, n, line) VALUES ($1, $2, $3) RETURNING id"

// act says with which status and body. Each run has a number, which no rollback takes back.
func act(ctx context.Context, claim *oncebox.Claim, header http.Header, command, body string) (int, string, error) {
	var run, id int64
	if err := claim.Tx.QueryRow(ctx, "SELECT nextval('run')").Scan(&run); err != nil {
		return 0, "", err
	}
	n, err := strconv.ParseInt(body, 10, 64)
	if err != nil {
		return 400, fmt.Sprintf("%q is not a number", body), nil
	}
	if err := claim.Tx.QueryRow(ctx, insert, claim.Key, n, claim.Tenant).Scan(&id); err != nil {
		return 0, "", err
	}
	what, number, _ := strings.Cut(command, ":")
	status, _ := strconv.Atoi(number)
	switch what {
	case "status":
		return status, fmt.Sprintf("status %d of run %d", status, run), nil
	case "lost":
		_, _ = claim.Tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
		return status, "no money", nil
	case "keep":
		claim.KeepsWrites = true
		return status, "no money", nil
	case "panic":
		panic("this handler fails")
	case "conflict":
		_, err = claim.Tx.Exec(ctx, "DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")
	case "swallow":
		_, _ = claim.Tx.Exec(ctx, "SELECT 1 / 0")
	case "restart":
		if _, err = claim.Tx.Exec(ctx, "ROLLBACK"); err == nil {
			_, err = claim.Tx.Exec(ctx, "BEGIN")
		}
		if err == nil {
			_, err = claim.Tx.Exec(ctx, insert, claim.Key, n, claim.Tenant)
		}
	case "commit":
		_, err = claim.Tx.Exec(ctx, "COMMIT")
	case "enqueue":
		key, failed := oncebox.StepKey(claim.Key, "pay")
		_, err = oncebox.Enqueue(ctx, claim.Tx, oncebox.Outgoing{Key: key, Subject: "orders.placed", Payload: map[string]int64{"n": n}})
		err = errors.Join(failed, err)
	case "locked":
		_, err = claim.Tx.Exec(ctx, "SELECT pg_advisory_xact_lock_shared(4711)")
	case "hang":
		<-ctx.Done()
		err = ctx.Err()
	case "large":
		header.Set("Location", fmt.Sprintf("/orders/%d", id))
		return 201, strings.Repeat("x", status), nil
	case "encoded":
		header.Set("Content-Encoding", "gzip")
		header.Set("Content-Language", "de")
		return 201, "as if packed", nil
	}
	header.Set("Content-Type", "application/vnd.shop+json; v=1")
	header.Set("Location", fmt.Sprintf("/orders/%d", id))
	header.Set("Etag", `W/"1"`)
	header.Add("Link", `</orders>; rel="collection"`)
	header.Add("Link", `</>; rel="index"`)
	header.Set("X-Request-Id", strconv.FormatUint(rand.Uint64(), 16))
	return 201, fmt.Sprintf("{\"z\" : 1.0,\n\t\"id\":%d, \"a\":\"\\u00e9\" }\n", id), err
}

func serve(writer http.ResponseWriter, request *http.Request) {
	if request.Method == http.MethodGet {
		fmt.Fprint(writer, "nothing")
		return
	}
	claim := oncebox.ClaimOf(request.Context())
	body, err := io.ReadAll(request.Body)
	if claim == nil || err != nil {
		http.Error(writer, "no claim", http.StatusInternalServerError)
		return
	}
	command := request.Header.Get("X-Do")
	status, text, err := act(request.Context(), claim, writer.Header(), command, string(body))
	if err != nil {
		http.Error(writer, err.Error(), http.StatusInternalServerError)
		return
	}
	writer.WriteHeader(status)
	fmt.Fprint(writer, text)
}

// tenant is as an authentication before the layer would find it out.
func tenant(request *http.Request) string {
	values := request.Header.Values("X-Tenant")
	if len(values) == 0 {
		return "main"
	}
	return values[0]
}

func main() {
	var settings struct {
		RequestBodyMax  int     `json:"request_body_max"`
		ResponseBodyMax int     `json:"response_body_max"`
		InFlightWait    float64 `json:"in_flight_wait"`
		HandlerTimeout  float64 `json:"handler_timeout"`
		Documentation   string  `json:"documentation"`
	}
	_ = json.Unmarshal([]byte(os.Getenv("SETTINGS")), &settings)
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	config.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}
	seconds := func(value float64) time.Duration { return time.Duration(value * float64(time.Second)) }
	layer := oncebox.NewIdempotency(pool, oncebox.IdempotencyOptions{
		Scope: "shop", Tenant: tenant, RequestBodyMax: settings.RequestBodyMax, ResponseBodyMax: settings.ResponseBodyMax,
		InFlightWait: seconds(settings.InFlightWait), HandlerTimeout: seconds(settings.HandlerTimeout), Documentation: settings.Documentation,
	})
	mux := http.NewServeMux()
	mux.Handle("/orders", layer.Handler(http.HandlerFunc(serve)))
	mux.Handle("/orders/{id}/items", layer.Handler(http.HandlerFunc(serve)))
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), mux))
}
