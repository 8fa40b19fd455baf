package oncebox

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// IdempotencyOptions are the settings of an HTTP layer; zero values mean the defaults.
type IdempotencyOptions struct {
	// Scope names the service; with method and route it is the scope of a key. Required; never rename it.
	Scope string
	// Tenant is the user's id, by your authentication before this layer; an empty one is answered with
	// 403. Without this function all requests belong to one tenant, and a repeated request must have the
	// same credentials.
	Tenant func(*http.Request) string
	// Credentials are headers. Default: Authorization and Cookie without a Tenant, else none.
	Credentials []string
	// Content chooses the bytes that tell requests apart, instead of content type and body.
	Content func(request *http.Request, body []byte) []byte
	// Route, where it is not the pattern of an http.ServeMux.
	Route string
	// PassesWithoutKey lets requests without a key through, without a claim.
	PassesWithoutKey bool
	// NotStored are the statuses of the 4xx that are not stored. Default: 401, 403, 408, 409, 425, 429.
	NotStored []int
	// KeptHeaders are stored with a response. Default: Content-Type, Location, Etag, Link.
	KeptHeaders []string
	// RequestBodyMax and ResponseBodyMax are numbers of bytes. Default: 256 KiB each.
	RequestBodyMax, ResponseBodyMax int
	// InFlightWait is how long a repeated request waits for the first one, before it is answered with
	// 409. Default: 1.5 s.
	InFlightWait time.Duration
	// RetryAfter is asked for with 409 and 503. Default: 1 s.
	RetryAfter time.Duration
	// HandlerTimeout is how long a handler may take until its context ends. Default: 1 min.
	HandlerTimeout time.Duration
	// Retention is how long a response is kept at least; negative is for ever. Default: 1 day.
	Retention time.Duration
	// Documentation is the address of your API's, for a Link in the layer's own answers.
	Documentation string
	// Schema is the PostgreSQL schema with the tables. Default: oncebox.
	Schema string
}

// Claim is the claim of a request's key.
type Claim struct {
	// Tx is the transaction that the key is claimed in. The layer ends it.
	Tx pgx.Tx
	// Key is the root of the keys of the request's messages: StepKey(claim.Key, "ship").
	Key, Tenant string
	// KeepsWrites has the writes committed with a 4xx, too.
	KeepsWrites bool
}

type claimKey struct{}

// ClaimOf is the claim of the request with this context; nil if there is none.
func ClaimOf(ctx context.Context) *Claim {
	claim, _ := ctx.Value(claimKey{}).(*Claim)
	return claim
}

// Idempotency answers a repeated request from its stored response. It claims the request's key in the
// transaction that the handler writes through, and stores the response in it. Which responses are
// stored, and the answers of the layer itself, are those of the crate oncebox-http; services of both
// kinds may answer each other's requests.
type Idempotency struct {
	database
	options    IdempotencyOptions
	registered sync.Map
}

// NewIdempotency makes a layer. It panics without a scope.
func NewIdempotency(pool *pgxpool.Pool, options IdempotencyOptions) *Idempotency {
	if options.Scope == "" {
		panic("oncebox: an idempotency layer needs a scope")
	}
	if options.Credentials == nil && options.Tenant == nil {
		options.Credentials = []string{"Authorization", "Cookie"}
	}
	if options.NotStored == nil {
		options.NotStored = []int{401, 403, 408, 409, 425, 429}
	}
	if options.KeptHeaders == nil {
		options.KeptHeaders = []string{"Content-Type", "Location", "Etag", "Link"}
	}
	options.KeptHeaders = append(slices.Clone(options.KeptHeaders), "Content-Encoding")
	options.RequestBodyMax = cmp.Or(options.RequestBodyMax, 256<<10)
	options.ResponseBodyMax = cmp.Or(options.ResponseBodyMax, 256<<10)
	options.InFlightWait = cmp.Or(options.InFlightWait, 1500*time.Millisecond)
	options.RetryAfter = cmp.Or(options.RetryAfter, time.Second)
	options.HandlerTimeout = cmp.Or(options.HandlerTimeout, time.Minute)
	options.Retention = cmp.Or(options.Retention, 24*time.Hour)
	return &Idempotency{database: database{pool, cmp.Or(options.Schema, "oncebox")}, options: options}
}

// Handler is the middleware: mux.Handle("POST /orders", layer.Handler(place)). GET, HEAD, OPTIONS and
// TRACE pass.
func (i *Idempotency) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		if slices.Contains([]string{"GET", "HEAD", "OPTIONS", "TRACE"}, request.Method) {
			next.ServeHTTP(writer, request)
			return
		}
		pending, err := i.identify(request)
		if pending == nil && err == nil {
			next.ServeHTTP(writer, request)
			return
		}
		var given answer
		if err == nil {
			given, err = i.answer(pending, next)
		}
		if err != nil {
			refused, isProblem := errors.AsType[problem](err)
			if !isProblem {
				slog.Warn("a request is answered with 503", "scope", i.options.Scope, "error", err)
				refused = problem{name: "unavailable"}
			}
			given = refused.answer(i.options.RetryAfter, i.options.Documentation)
		}
		given.send(writer)
	})
}
