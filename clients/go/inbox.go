package oncebox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// How often a message is run again at once after a conflict with another transaction.
	conflictRounds = 5
	// How long it may take to get a connection, and how long each step before and after the handler
	// may take.
	stepLimit = 30 * time.Second
	mismatch  = "the key was used before with another payload"
)

// InboxOptions are the optional settings of an inbox; zero values mean the defaults.
type InboxOptions struct {
	// TenantHeader, unless empty, names the header with the tenant; every message must have it then.
	TenantHeader string
	// KeyHeaders may hold the key; the first that is present is used. Default: Idempotency-Key,
	// x-idempotency-key.
	KeyHeaders []string
	// AttemptsMax is the number of failed attempts after which a message is given up. Default: 20.
	AttemptsMax int64
	// Backoff is the pause after the first failure, BackoffMax the longest pause. Default: 1 s and 5
	// min.
	Backoff, BackoffMax time.Duration
	// HandlerTimeout is how long a handler may take until its context ends. Default: 1 min.
	HandlerTimeout time.Duration
	// Retention is how long a key is kept at least; 0 means for ever.
	Retention time.Duration
	// Schema is the PostgreSQL schema with the tables. Default: oncebox.
	Schema string
}

// Inbox runs handlers once per key, over connections of its pool.
type Inbox struct {
	pool    *pgxpool.Pool
	scope   string
	options InboxOptions
}

// NewInbox makes an inbox. The scope names the consumer, "service:handler"; never rename it.
func NewInbox(pool *pgxpool.Pool, scope string, options InboxOptions) *Inbox {
	if len(options.KeyHeaders) == 0 {
		options.KeyHeaders = []string{"Idempotency-Key", "x-idempotency-key"}
	}
	options.AttemptsMax = cmp.Or(options.AttemptsMax, 20)
	options.Backoff = cmp.Or(options.Backoff, time.Second)
	options.BackoffMax = cmp.Or(options.BackoffMax, 5*time.Minute)
	options.HandlerTimeout = cmp.Or(options.HandlerTimeout, time.Minute)
	return &Inbox{pool, scope, options}
}

// Register records the scope and its retention; it fails when the scope is in use in the leased
// mode.
func (in *Inbox) Register(ctx context.Context) error {
	ctx, cancel := limited(ctx)
	defer cancel()
	statement := in.sql("SELECT {schema}.register_scope($1, make_interval(secs => nullif($2::float8, 0)))")
	_, err := in.pool.Exec(ctx, statement, in.scope, in.options.Retention.Seconds())
	return err
}

// Run handles one message: it runs the handler, or answers a copy from the stored outcome. An error
// means that PostgreSQL could not record the result: run the message again later.
func (in *Inbox) Run(ctx context.Context, handler Handler, message Message) (Answer, error) {
	var err error
	if message.Tenant, err = in.tenant(message); err == nil {
		message.Key, err = in.key(message)
	}
	if err != nil {
		message.Tenant, message.Key = "", ""
		return in.bury(ctx, message, err.Error())
	}
	for range conflictRounds {
		var answer Answer
		if answer, err = in.attempt(ctx, handler, message); err == nil {
			if answer.Name == "mismatch" {
				return in.bury(ctx, message, mismatch)
			}
			return answer, nil
		}
		if !isConflict(err) {
			break
		}
		time.Sleep(time.Duration(5+rand.IntN(95)) * time.Millisecond)
	}
	return in.failed(ctx, message, err)
}

// attempt claims the key, runs the handler and stores the outcome, in one transaction.
func (in *Inbox) attempt(ctx context.Context, handler Handler, message Message) (Answer, error) {
	step, cancel := limited(ctx)
	defer cancel()
	connection, err := in.pool.Acquire(step)
	if err != nil {
		return Answer{}, err
	}
	// The pool closes a connection that comes back inside of a transaction.
	defer connection.Release()
	tx, answer, err := in.claim(step, connection, message)
	if err != nil {
		return answer, err
	}
	isCommitted := false
	defer func() {
		if !isCommitted {
			rollback(ctx, tx)
		}
	}()
	if answer.Name != "new" {
		return answer, nil
	}
	reply, err := in.handle(ctx, handler, tx, message)
	if err != nil {
		return Answer{}, err
	}
	status := "completed"
	if reject, isReject := reply.(Reject); isReject {
		status, reply = "rejected", reject.Reply
	}
	if answer.Reply, err = json.Marshal(reply); err != nil {
		return Answer{}, fmt.Errorf("encode the handler's reply: %w", err)
	}
	step, cancel = limited(ctx)
	defer cancel()
	// Both statements are sent in one round trip. In a transaction that an error aborted, COMMIT alone
	// would be a silent ROLLBACK; the statement before it fails there, and then the COMMIT is not
	// executed.
	batch := &pgx.Batch{}
	if reply == nil && status == "completed" {
		batch.Queue("SAVEPOINT oncebox_commit") // the claim has stored this outcome
	} else {
		settle := in.sql("SELECT {schema}.settle($1, $2, $3::json, $4, $5)")
		batch.Queue(settle, in.scope, message.Key, answer.Reply, message.Tenant, status)
	}
	batch.Queue("COMMIT")
	err = tx.SendBatch(step, batch).Close()
	isCommitted = err == nil
	return answer, err
}

func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := limited(ctx)
	defer cancel()
	_ = tx.Rollback(ctx)
}

// claim begins the transaction and claims the key, in one round trip. BEGIN DEFERRABLE tells
// claim() that the transaction will be committed by an inbox; in any other transaction claim()
// fails.
func (in *Inbox) claim(ctx context.Context, connection *pgxpool.Conn, message Message) (pgx.Tx, Answer, error) {
	limit := fmt.Sprintf("%dms", (in.options.HandlerTimeout + 5*time.Second).Milliseconds())
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted, DeferrableMode: pgx.Deferrable})
	batch.Queue(
		in.sql("SELECT answer, outcome, coalesce(reason, ''), set_config('idle_in_transaction_session_timeout', $1, true)"+
			" FROM {schema}.claim($2, $3, $4, $5, $6)"),
		limit, in.scope, message.Key, message.bytes(), message.Tenant, message.id(),
	)
	results := connection.SendBatch(ctx, batch)
	answer := Answer{After: in.pause(1)}
	_, _ = results.Exec() // if BEGIN fails, the claim returns the same error
	scanned := results.QueryRow().Scan(&answer.Name, &answer.Reply, &answer.Reason, nil)
	return results.Tx(), answer, cmp.Or(scanned, results.Close())
}

// handle runs the handler, and turns a panic into an error.
func (in *Inbox) handle(ctx context.Context, handler Handler, tx pgx.Tx, message Message) (reply any, err error) {
	ctx, cancel := context.WithTimeout(ctx, in.options.HandlerTimeout)
	defer cancel()
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("the handler panicked: %v", panicked)
		}
	}()
	return handler(ctx, uncommitted{tx}, message)
}

// failed counts a failed attempt, and gives the message up when it has reached AttemptsMax.
func (in *Inbox) failed(ctx context.Context, message Message, failure error) (Answer, error) {
	var said verdict
	if errors.As(failure, &said) && !said.isRetry {
		return in.bury(ctx, message, said.reason)
	}
	reason, _, _ := strings.Cut(failure.Error(), "\n")
	ctx, cancel := limited(ctx)
	defer cancel()
	// If PostgreSQL is away, this statement fails too, and the attempt does not count.
	var attempts int64
	statement := in.sql("SELECT {schema}.attempt_failed($1, $2, $3, $4, $5, $6)")
	parameters := append([]any{in.scope, message.Key, message.Tenant}, message.Origin.parameters()...)
	if err := in.pool.QueryRow(ctx, statement, parameters...).Scan(&attempts); err != nil {
		return Answer{}, fmt.Errorf("count a failed attempt (%s): %w", reason, err)
	}
	if attempts >= in.options.AttemptsMax {
		return in.bury(ctx, message, fmt.Sprintf("delivery limit of %d reached: %s", in.options.AttemptsMax, reason))
	}
	after := in.pause(attempts)
	if said.isRetry {
		after = min(said.after, in.options.BackoffMax)
	}
	slog.Warn("attempt failed, will retry", "scope", in.scope, "key", message.Key, "attempt", attempts, "after", after, "reason", reason)
	return Answer{Name: "retry", Reason: reason, After: after}, nil
}

// bury gives a message up and records it as a dead letter, unless a copy was handled meanwhile.
func (in *Inbox) bury(ctx context.Context, message Message, reason string) (Answer, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	answer := Answer{Reason: printable(reason), After: in.pause(1)}
	statement := in.sql("SELECT {schema}.bury($1, nullif($2, ''), $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)")
	parameters := []any{in.scope, message.Key, message.bytes(), answer.Reason, message.Subject, message.Headers, message.Tenant}
	parameters = append(append(parameters, message.id()), message.Origin.parameters()...)
	parameters = append(parameters, max(message.Deliveries, 1))
	if err := in.pool.QueryRow(ctx, statement, parameters...).Scan(&answer.Name); err != nil {
		return Answer{}, fmt.Errorf("record a dead letter (%s): %w", answer.Reason, err)
	}
	if answer.Name == "dead" || answer.Name == "mismatch" {
		slog.Warn("dead letter", "scope", in.scope, "key", message.Key, "reason", answer.Reason)
	}
	return answer, nil
}

func (in *Inbox) key(message Message) (string, error) {
	for _, name := range in.options.KeyHeaders {
		if value, isThere := message.Headers[strings.ToLower(name)]; isThere {
			return value, CheckKey(value)
		}
	}
	return "", fmt.Errorf("no key: none of the headers %s is present", strings.Join(in.options.KeyHeaders, ", "))
}

func (in *Inbox) tenant(message Message) (string, error) {
	header := in.options.TenantHeader
	if header == "" {
		return "", nil
	}
	tenant := message.Headers[strings.ToLower(header)]
	isControl := func(r rune) bool { return r < ' ' || r >= 0x7f && r <= 0x9f }
	if len(tenant) < 1 || len(tenant) > 255 || !utf8.ValidString(tenant) || strings.ContainsFunc(tenant, isControl) {
		return "", fmt.Errorf("tenant header %s is not 1 to 255 bytes without control characters", header)
	}
	return tenant, nil
}

func (in *Inbox) pause(attempts int64) time.Duration {
	longest := in.options.BackoffMax
	// Compared before it is doubled, since so many doublings overflow.
	if doublings := min(attempts-1, 62); in.options.Backoff <= longest>>doublings {
		longest = in.options.Backoff << doublings
	}
	return longest/2 + rand.N(longest/2+1)
}

func (in *Inbox) sql(text string) string { return inSchema(text, in.options.Schema) }

func inSchema(text, schema string) string {
	return strings.ReplaceAll(text, "{schema}", pgx.Identifier{cmp.Or(schema, "oncebox")}.Sanitize())
}

func isConflict(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && (refused.Code == "40001" || refused.Code == "40P01")
}

// printable makes a text that PostgreSQL can store: UTF-8 without NUL.
func printable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\ufffd"), "\x00", "\ufffd")
}

// limited is the context of a step before or after the handler. It does not end with ctx, so that a
// drain finishes the step.
func limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), stepLimit)
}
