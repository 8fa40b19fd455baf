package oncebox

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pending is a request that is to be answered.
type pending struct {
	transaction
	request                       *http.Request
	body                          []byte
	scope, tenant, clientKey, key string
}

// identify finds out who a request is; nil for one that passes without a claim.
func (i *Idempotency) identify(request *http.Request) (*pending, error) {
	if len(request.Method) > 20 {
		return nil, problem{name: "method-unknown"}
	}
	key, isThere, err := clientKey(request.Header)
	if err != nil {
		return nil, err
	}
	if !isThere {
		if i.options.PassesWithoutKey {
			return nil, nil
		}
		return nil, problem{name: "key-missing"}
	}
	tenant := ""
	if i.options.Tenant != nil {
		tenant = i.options.Tenant(request)
		isText := utf8.ValidString(tenant) && !strings.ContainsFunc(tenant, unicode.IsControl)
		if tenant == "" || len(tenant) > 255 || !isText {
			return nil, problem{name: "tenant-missing"}
		}
	}
	route := i.options.Route
	if route == "" {
		route = request.Pattern[strings.Index(request.Pattern, " ")+1:]
	}
	if route == "" {
		slog.Error("a request without a route: put the layer behind an http.ServeMux, set request.Pattern as the README does for Gin and Echo, or give it a Route", "path", request.URL.Path)
		return nil, problem{name: "set-up-wrongly"}
	}
	body, err := io.ReadAll(io.LimitReader(request.Body, int64(i.options.RequestBodyMax)+1))
	if err != nil {
		return nil, problem{name: "body-unreadable"}
	}
	// Without the bytes that something has read before, another request would look like this one.
	isRead := request.ContentLength > 0 && int64(len(body)) < min(request.ContentLength, int64(i.options.RequestBodyMax)) ||
		request.ContentLength < 0 && len(body) == 0 || request.PostForm != nil || request.MultipartForm != nil
	if isRead {
		slog.Error("the body of a request was read before the idempotency layer: put the layer before ParseForm and others that read it",
			"scope", i.options.Scope, "route", route)
		return nil, problem{name: "set-up-wrongly"}
	}
	if len(body) > i.options.RequestBodyMax {
		return nil, problem{name: "body-too-large"}
	}
	scope := fmt.Sprintf("%s %s %s", i.options.Scope, request.Method, route)
	return &pending{request: request, body: body, scope: scope, tenant: tenant, clientKey: key}, nil
}

// answer looks at the key until it is claimed, or done, or the time is over. It goes on when the client
// goes away.
func (i *Idempotency) answer(p *pending, next http.Handler) (answer, error) {
	ctx := context.WithoutCancel(p.request.Context())
	if err := i.register(ctx, p.scope); err != nil {
		return answer{}, err
	}
	deadline := time.Now().Add(i.options.InFlightWait)
	for {
		given, isDone, err := i.attempt(ctx, p, next)
		if err != nil || isDone {
			return given, err
		}
		if time.Now().After(deadline) {
			return answer{}, problem{name: "in-flight"}
		}
		rest()
	}
}

// register says once in this process that a route exists.
func (i *Idempotency) register(ctx context.Context, scope string) error {
	if _, isRegistered := i.registered.Load(scope); isRegistered {
		return nil
	}
	err := i.database.register(ctx, scope, i.options.Retention, "http", "transaction")
	if err == nil {
		i.registered.Store(scope, true)
	}
	return err
}

// attempt answers with the stored response, or claims the key and has the request handled; not if
// another request works on it.
func (i *Idempotency) attempt(ctx context.Context, p *pending, next http.Handler) (given answer, isDone bool, err error) {
	err = p.within(ctx, i.pool, func(step context.Context, connection *pgxpool.Conn) error {
		tx, stored, err := i.look(step, connection, p)
		switch {
		case err != nil:
			return err
		case stored != nil:
			given, isDone = *stored, true
		case p.xid != "":
			isDone = true
			given, err = i.handle(ctx, connection, tx, p, next)
			return i.problem(p, err)
		}
		return nil
	})
	return given, isDone, err
}

// look finds the stored response of the key. Without one the key is claimed, or another request works on
// it.
func (i *Idempotency) look(ctx context.Context, connection *pgxpool.Conn, p *pending) (pgx.Tx, *answer, error) {
	p.xid = ""
	tx, err := connection.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, DeferrableMode: pgx.Deferrable})
	if err != nil {
		return nil, nil, err
	}
	sql := "SELECT answer, key, coalesce(status, 0)::text, coalesce(headers::text, '[]'), coalesce(encode(body, 'hex'), '-')," +
		" coalesce(pg_current_xact_id_if_assigned()::text, ''), " + session +
		", set_config('idle_in_transaction_session_timeout', $1::text, true)" +
		" FROM {schema}.claim_request($2::text, $3::text, $4::text," +
		" {schema}.request_fingerprint($5::text, $6::text, $7::text, $8::text::jsonb, $9::text, $10::bytea))"
	limit := fmt.Sprintf("%dms", i.options.HandlerTimeout.Milliseconds()+5000)
	parameters := append([]any{limit, p.scope, p.tenant, p.clientKey}, i.content(p)...)
	var name, status, headers, body, xid string
	err = tx.QueryRow(ctx, i.sql(sql), parameters...).
		Scan(&name, &p.key, &status, &headers, &body, &xid, &p.session, nil)
	if err != nil {
		return tx, nil, err
	}
	switch {
	case name == "new":
		p.xid = xid
		return tx, nil, nil
	case name == "mismatch":
		return tx, nil, problem{name: "key-reused"}
	case name != "replayed":
		return tx, nil, nil
	case status == "0":
		return tx, nil, problem{name: "response-unknown"}
	}
	stored, err := i.stored(status, headers, body)
	return tx, stored, err
}

// stored is a response as it was stored.
func (i *Idempotency) stored(status, headers, body string) (*answer, error) {
	var pairs [][2]string
	if err := json.Unmarshal([]byte(headers), &pairs); err != nil {
		return nil, err
	}
	stored := answer{header: http.Header{}}
	stored.status, _ = strconv.Atoi(status)
	if body == "-" {
		stored = problem{"response-not-kept", stored.status}.answer(i.options.RetryAfter, i.options.Documentation)
	}
	for _, pair := range pairs {
		if body != "-" || pair[0] != "content-type" && pair[0] != "content-encoding" {
			stored.header.Add(pair[0], fromLatin1(pair[1]))
		}
	}
	stored.header.Set("Idempotent-Replayed", "true")
	if body != "-" {
		stored.body, _ = hex.DecodeString(body) // as encode() has written it
	}
	return &stored, nil
}

// content are the parts that tell a request from another one.
func (i *Idempotency) content(p *pending) []any {
	path, query, _ := strings.Cut(p.request.RequestURI, "?")
	pairs := [][2]string{}
	for _, name := range i.options.Credentials {
		for _, value := range p.request.Header.Values(name) {
			pairs = append(pairs, [2]string{strings.ToLower(name), latin1(value)})
		}
	}
	credentials, _ := json.Marshal(pairs) // texts have JSON
	parts := []any{p.request.Method, latin1(path), latin1(query), string(credentials)}
	if i.options.Content != nil {
		return append(parts, nil, bytea(i.options.Content(p.request, p.body)))
	}
	return append(parts, latin1(p.request.Header.Get("Content-Type")), bytea(p.body))
}

// handle has the request handled, and stores its answer with its writes, alone, or not at all.
func (i *Idempotency) handle(ctx context.Context, connection *pgxpool.Conn, tx pgx.Tx, p *pending, next http.Handler) (answer, error) {
	claim := &Claim{Key: p.key, Tenant: p.tenant}
	given, err := i.call(ctx, tx, p, claim, next)
	if err != nil {
		return answer{}, err
	}
	given.header.Set("Idempotent-Replayed", "false")
	isStored := given.status < 500 && !slices.Contains(i.options.NotStored, given.status)
	if isStored && (given.status < 400 || claim.KeepsWrites) {
		return given, i.commit(ctx, tx, p, given)
	}
	step, cancel := limited(ctx)
	defer cancel()
	err = tx.Rollback(step)
	if !isStored {
		return given, nil
	}
	// A no is stored without the handler's writes. Unless that works, the client does not get it: a copy
	// that comes later could be done.
	var stored *answer
	if err == nil {
		tx, stored, err = i.look(step, connection, p)
	}
	if err != nil {
		if _, isProblem := errors.AsType[problem](err); !isProblem {
			err = problem{name: "unavailable"}
		}
		return answer{}, err
	}
	if stored != nil {
		return *stored, nil // another process was faster
	}
	if p.xid == "" {
		return answer{}, problem{name: "in-flight"}
	}
	return given, i.commit(ctx, tx, p, given)
}

// call runs the handler. A stored response may be for a client that accepts another encoding.
func (i *Idempotency) call(ctx context.Context, tx pgx.Tx, p *pending, claim *Claim, next http.Handler) (given answer, err error) {
	isSlow := false
	err = guarded(ctx, i.options.HandlerTimeout, tx, p.key, func(ctx context.Context, tx pgx.Tx) error {
		claim.Tx = tx
		request := p.request.Clone(context.WithValue(ctx, claimKey{}, claim))
		request.Header.Set("Accept-Encoding", "identity")
		request.Body = io.NopCloser(bytes.NewReader(p.body))
		whole := &capture{answer: answer{header: http.Header{}}}
		defer func() { isSlow = ctx.Err() != nil }()
		next.ServeHTTP(whole, request)
		given = whole.ended()
		return nil
	})
	if isSlow {
		err = problem{name: "too-slow"}
	}
	return given, err
}

func (i *Idempotency) commit(ctx context.Context, tx pgx.Tx, p *pending, given answer) error {
	kept := [][2]string{}
	for _, name := range i.options.KeptHeaders {
		for _, value := range given.header.Values(name) {
			kept = append(kept, [2]string{strings.ToLower(name), latin1(value)})
		}
	}
	headers, _ := json.Marshal(kept) // texts have JSON
	var body any
	if len(given.body) <= i.options.ResponseBodyMax {
		body = bytea(given.body)
	}
	settle := "SELECT {schema}.settle_request($1::text, $2::text, $3::text, $4::text::boolean, $5::text::integer, $6::text::jsonb, $7::bytea)::text"
	return commit(ctx, tx, &p.transaction, i.sql(settle), p.scope, p.tenant, p.key,
		strconv.FormatBool(given.status >= 400), strconv.Itoa(given.status), string(headers), body)
}

// problem is the answer to a request whose handler or end failed.
func (i *Idempotency) problem(p *pending, err error) error {
	if _, isProblem := errors.AsType[problem](err); err == nil || isProblem {
		return err
	}
	// Whether a COMMIT without an answer has happened finds the next attempt out.
	if p.isUnsure || isConflict(err) || isSpoiling(err) {
		return problem{name: "unavailable"}
	}
	slog.Error("the handler failed, and its writes are rolled back", "scope", p.scope, "key", p.key, "error", err)
	return problem{name: "failed"}
}
