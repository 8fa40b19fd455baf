package oncebox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// How often a message that lost a race against another transaction is run again at once.
	conflictRounds = 5
	// How long PostgreSQL may take for a connection, and for each step around the handler.
	stepLimit = 30 * time.Second
	// The id that a relay has sent along, or NULL.
	messageID = "substring($6 FROM '^[0-9]{1,18}$')::bigint"
)

var tenantPattern = regexp.MustCompile(`^[^\x00-\x1f\x7f-\x{9f}]+$`)

// InboxOptions are what may be left out; zero values mean the defaults.
type InboxOptions struct {
	// TenantHeader, unless empty, says whose key it is; a message must have it then.
	TenantHeader string
	// KeyHeaders are looked for in turn: Idempotency-Key, x-idempotency-key.
	KeyHeaders []string
	// AttemptsMax is after how many failures a message is given up: 20.
	AttemptsMax int64
	// Backoff is the pause after the first failure, BackoffMax the longest: 1 s and 5 min.
	Backoff, BackoffMax time.Duration
	// HandlerTimeout is after how long a handler's context ends: 1 min.
	HandlerTimeout time.Duration
	// Retention is how long a key is kept at least; 0 is for ever.
	Retention time.Duration
	// Schema is oncebox.
	Schema string
}

// Inbox runs handlers once per key, over connections of its pool.
type Inbox struct {
	pool    *pgxpool.Pool
	scope   string
	options InboxOptions
}

// NewInbox makes an inbox. The scope says who consumes, "service:handler"; never rename it.
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

// Register says that this consumer exists; it fails when its scope is in use in the leased mode.
func (in *Inbox) Register(ctx context.Context) error {
	statement := "SELECT {schema}.register_scope($1, make_interval(secs => nullif($2::float8, 0)))"
	return in.ask(ctx, nil, statement, in.scope, in.options.Retention.Seconds())
}

// Run deals with one message: it runs the handler, or answers from what is stored. An error means
// that PostgreSQL could not record what became of the message: run it again later.
func (in *Inbox) Run(ctx context.Context, handler Handler, message Message) (Answer, error) {
	message.Tenant, message.Key = "", ""
	identified, err := in.identify(message)
	if err != nil {
		return in.bury(ctx, message, err.Error())
	}
	for round := 1; ; round++ {
		answer, err := in.attempt(ctx, handler, identified)
		if err == nil {
			return answer, nil
		}
		refused, isRefused := errors.AsType[*pgconn.PgError](err)
		isConflict := isRefused && (refused.Code == "40001" || refused.Code == "40P01")
		if !isConflict || round == conflictRounds {
			return in.failed(ctx, identified, err)
		}
		time.Sleep(time.Duration(5+rand.IntN(95)) * time.Millisecond)
	}
}

// identify reads tenant and key from the headers.
func (in *Inbox) identify(message Message) (Message, error) {
	if header := in.options.TenantHeader; header != "" {
		message.Tenant = message.Headers[strings.ToLower(header)]
		if len(message.Tenant) > 255 || !tenantPattern.MatchString(message.Tenant) || !utf8.ValidString(message.Tenant) {
			return message, fmt.Errorf("tenant header %s is not 1 to 255 bytes without control characters", header)
		}
	}
	for _, name := range in.options.KeyHeaders {
		if key, isThere := message.Headers[strings.ToLower(name)]; isThere {
			message.Key = key
			return message, CheckKey(key)
		}
	}
	return message, fmt.Errorf("no key: none of the headers %s is present", strings.Join(in.options.KeyHeaders, ", "))
}

// attempt makes one transaction of the claim, the handler's writes and the outcome.
func (in *Inbox) attempt(ctx context.Context, handler Handler, message Message) (Answer, error) {
	step, cancel := limited(ctx)
	defer cancel()
	connection, err := in.pool.Acquire(step)
	if err != nil {
		return Answer{}, err
	}
	defer release(ctx, connection)
	tx, answer, err := in.claim(step, connection, message)
	if answer.Name == "mismatch" {
		return answer, GiveUp("the key was used before with another payload")
	}
	if err != nil || answer.Name != "new" {
		return answer, err
	}
	reply, err := in.handle(ctx, handler, tx, message)
	if err != nil {
		return Answer{}, err
	}
	answer.Reply, err = in.settle(ctx, tx, message, reply)
	return answer, err
}

// release rolls back what is not committed. The pool closes a connection where that fails.
func release(ctx context.Context, connection *pgxpool.Conn) {
	defer connection.Release()
	if connection.Conn().PgConn().TxStatus() != 'I' {
		ctx, cancel := limited(ctx)
		defer cancel()
		_, _ = connection.Exec(ctx, "ROLLBACK")
	}
}

// claim begins the transaction and claims the key, in one round trip. BEGIN DEFERRABLE is the mark
// of a transaction that claims: claim() refuses to be committed by itself.
func (in *Inbox) claim(ctx context.Context, connection *pgxpool.Conn, message Message) (pgx.Tx, Answer, error) {
	limit := fmt.Sprintf("%dms", (in.options.HandlerTimeout + 5*time.Second).Milliseconds())
	statement := in.sql("SELECT answer, outcome, coalesce(reason, ''), set_config('idle_in_transaction_session_timeout', $1, true)" +
		" FROM {schema}.claim($2, $3, coalesce($4, ''::bytea), $5, " + messageID + ")")
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted, DeferrableMode: pgx.Deferrable})
	batch.Queue(statement, limit, in.scope, message.Key, message.Payload, message.Tenant, message.Headers["oncebox-id"])
	results := connection.SendBatch(ctx, batch)
	answer := Answer{After: in.pause(1)}
	_, _ = results.Exec() // an error in it is the error of all that follows
	scanned := results.QueryRow().Scan(&answer.Name, &answer.Reply, &answer.Reason, nil)
	return results.Tx(), answer, cmp.Or(scanned, results.Close())
}

// settle stores the reply, which it returns as JSON, and commits, in one round trip.
func (in *Inbox) settle(ctx context.Context, tx pgx.Tx, message Message, reply any) (json.RawMessage, error) {
	status := "completed"
	if reject, isReject := reply.(Reject); isReject {
		status, reply = "rejected", reject.Reply
	}
	stored, err := json.Marshal(reply)
	if err != nil {
		return nil, fmt.Errorf("encode the handler's reply: %w", err)
	}
	ctx, cancel := limited(ctx)
	defer cancel()
	// The COMMIT of a transaction that an error aborted would be a silent ROLLBACK.
	if tx.Conn().PgConn().TxStatus() != 'T' {
		return nil, errors.New("the transaction was aborted by an error that the handler did not return, or ended by the handler")
	}
	if reply == nil && status == "completed" {
		return stored, tx.Commit(ctx) // as the claim has stored it
	}
	batch := &pgx.Batch{}
	statement := in.sql("SELECT {schema}.settle($1, $2, $3::json, $4, $5)")
	batch.Queue(statement, in.scope, message.Key, stored, message.Tenant, status)
	batch.Queue("COMMIT") // not executed behind an error
	return stored, tx.SendBatch(ctx, batch).Close()
}

// handle runs the handler, whose panic is an error.
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

// failed counts a failed attempt, and gives up a message that has had enough of them.
func (in *Inbox) failed(ctx context.Context, message Message, failure error) (Answer, error) {
	said, isSaid := errors.AsType[verdict](failure)
	if isSaid && said.after < 0 {
		return in.bury(ctx, message, said.Error())
	}
	reason, _, _ := strings.Cut(failure.Error(), "\n")
	// PostgreSQL may be away: then this fails as well, and the attempt does not count.
	var attempts int64
	parameters := append([]any{in.scope, message.Key, message.Tenant}, message.Origin.parameters()...)
	if err := in.ask(ctx, &attempts, "SELECT {schema}.attempt_failed($1, $2, $3, $4, $5, $6)", parameters...); err != nil {
		return Answer{}, fmt.Errorf("count a failed attempt (%s): %w", reason, err)
	}
	if attempts >= in.options.AttemptsMax {
		return in.bury(ctx, message, fmt.Sprintf("delivery limit of %d reached: %s", in.options.AttemptsMax, reason))
	}
	after := in.pause(attempts)
	if isSaid {
		after = min(said.after, in.options.BackoffMax)
	}
	slog.Warn("attempt failed, will retry", "scope", in.scope, "key", message.Key, "attempt", attempts, "after", after, "reason", reason)
	return Answer{Name: "retry", Reason: reason, After: after}, nil
}

// bury gives a message up and records it as a dead letter, unless a copy was handled meanwhile.
func (in *Inbox) bury(ctx context.Context, message Message, reason string) (Answer, error) {
	answer := Answer{Reason: printable(reason), After: in.pause(1)}
	statement := "SELECT {schema}.bury($1, nullif($2, ''), coalesce($3, ''::bytea), $4, $5, $7, $8, " + messageID +
		", $10, $11, $12, greatest($9::bigint, 1))"
	parameters := append([]any{in.scope, message.Key, message.Payload, answer.Reason, message.Subject, message.Headers["oncebox-id"],
		message.Headers, message.Tenant, message.Deliveries}, message.Origin.parameters()...)
	if err := in.ask(ctx, &answer.Name, statement, parameters...); err != nil {
		return Answer{}, fmt.Errorf("record a dead letter (%s): %w", answer.Reason, err)
	}
	if answer.Name == "dead" || answer.Name == "mismatch" {
		slog.Warn("dead letter", "scope", in.scope, "key", message.Key, "reason", answer.Reason)
	}
	return answer, nil
}

// ask calls a function in a transaction of its own.
func (in *Inbox) ask(ctx context.Context, answer any, statement string, parameters ...any) error {
	ctx, cancel := limited(ctx)
	defer cancel()
	return in.pool.QueryRow(ctx, in.sql(statement), parameters...).Scan(answer)
}

func (in *Inbox) pause(attempts int64) time.Duration {
	longest := min(in.options.Backoff<<min(attempts-1, 20), in.options.BackoffMax)
	return longest/2 + rand.N(longest/2+1)
}

func (in *Inbox) sql(text string) string { return inSchema(text, in.options.Schema) }

func inSchema(text, schema string) string {
	return strings.ReplaceAll(text, "{schema}", pgx.Identifier{cmp.Or(schema, "oncebox")}.Sanitize())
}

// printable is a text that PostgreSQL stores: UTF-8 without NUL.
func printable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\ufffd"), "\x00", "\ufffd")
}

// limited is for a step around the handler, which is finished in a drain as well.
func limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), stepLimit)
}
