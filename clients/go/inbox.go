package oncebox

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"
	"unicode"
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
	// The message's id in the outbox, which a relay sends in a header; NULL if there is none.
	messageID = "substring($6 FROM '^[0-9]{1,18}$')::bigint"
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

// unattempted is the error of a message that got no connection.
type unattempted struct{ error }

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
	return in.ask(ctx, nil, "SELECT {schema}.register_scope($1, make_interval(secs => nullif($2::float8, 0)))",
		in.scope, in.options.Retention.Seconds())
}

// Run handles one message: it runs the handler, or answers a copy from the stored outcome. An error
// means that PostgreSQL could not record the result: run the message again later.
func (in *Inbox) Run(ctx context.Context, handler Handler, message Message) (Answer, error) {
	message.Tenant, message.Key = "", ""
	identified, err := in.identify(message)
	if err != nil {
		return in.bury(ctx, message, err.Error())
	}
	for round := 1; ; round++ {
		answer, err := in.attempt(ctx, handler, identified)
		// Without a connection nothing was attempted, so nothing is counted.
		if _, isUnattempted := errors.AsType[unattempted](err); isUnattempted || err == nil {
			return answer, err
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
		isText := utf8.ValidString(message.Tenant) && !strings.ContainsFunc(message.Tenant, unicode.IsControl)
		if bytes := len(message.Tenant); bytes < 1 || bytes > 255 || !isText {
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

// attempt claims the key, runs the handler and stores the outcome, in one transaction.
func (in *Inbox) attempt(ctx context.Context, handler Handler, message Message) (Answer, error) {
	step, cancel := limited(ctx)
	defer cancel()
	connection, err := in.pool.Acquire(step)
	if err != nil {
		return Answer{}, unattempted{fmt.Errorf("get a connection: %w", err)}
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

// claim begins the transaction and claims a key that is probably new, in one round trip; of another
// key it asks claim() what is known. DEFERRABLE marks a transaction that an inbox will commit: the
// claim is sent before BEGIN is answered, and without the mark it claims nothing.
func (in *Inbox) claim(ctx context.Context, connection *pgxpool.Conn, message Message) (pgx.Tx, Answer, error) {
	limit := fmt.Sprintf("%dms", (in.options.HandlerTimeout + 5*time.Second).Milliseconds())
	fingerprint := sha256.Sum256(append([]byte("oncebox payload 1\x00"), message.Payload...))
	id := message.Headers["oncebox-id"]
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted, DeferrableMode: pgx.Deferrable})
	// This is the INSERT of claim(), which costs PostgreSQL more as a whole.
	batch.Queue(in.sql("INSERT INTO {schema}.inbox (scope, tenant, key, fingerprint, message_id, status)"+
		" SELECT s.scope, $5, $3, $7, "+messageID+", 'completed' FROM {schema}.inbox_scope AS s"+
		" WHERE s.scope = $2 AND s.mode = 'transaction' AND pg_try_advisory_xact_lock($4)"+
		" AND set_config('idle_in_transaction_session_timeout', $1, true) IS NOT NULL"+
		" AND current_setting('transaction_deferrable') <> current_setting('default_transaction_deferrable')"+
		" ON CONFLICT ON CONSTRAINT inbox_pkey DO NOTHING"),
		limit, in.scope, message.Key, in.lock(message), message.Tenant, id, fingerprint[:])
	results := connection.SendBatch(ctx, batch)
	answer := Answer{Name: "new", After: in.pause(1)}
	_, _ = results.Exec() // if BEGIN fails, the claim returns the same error
	inserted, err := results.Exec()
	tx, err := results.Tx(), cmp.Or(err, results.Close())
	if err == nil && inserted.RowsAffected() == 0 {
		statement := "SELECT answer, outcome, coalesce(reason, ''), set_config('idle_in_transaction_session_timeout', $1, true)" +
			" FROM {schema}.claim($2, $3, coalesce($4, ''::bytea), $5, " + messageID + ")"
		err = tx.QueryRow(ctx, in.sql(statement), limit, in.scope, message.Key, message.Payload, message.Tenant, id).
			Scan(&answer.Name, &answer.Reply, &answer.Reason, nil)
	}
	return tx, answer, err
}

// lock is 64 bits that stand for a key in advisory locks, as the function inbox_lock() computes them.
func (in *Inbox) lock(message Message) int64 {
	hash := sha256.New()
	for _, field := range []string{"oncebox inbox 1", cmp.Or(in.options.Schema, "oncebox"), in.scope, message.Tenant, message.Key} {
		hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(field))))
		hash.Write([]byte(field))
	}
	return int64(binary.BigEndian.Uint64(hash.Sum(nil)))
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
	// In a transaction that an error aborted, COMMIT would be a silent ROLLBACK.
	if tx.Conn().PgConn().TxStatus() != 'T' {
		return nil, errors.New("the transaction was aborted by an error that the handler did not return, or ended by the handler")
	}
	if reply == nil && status == "completed" {
		return stored, tx.Commit(ctx) // the claim has stored this outcome
	}
	batch := &pgx.Batch{}
	batch.Queue(in.sql("SELECT {schema}.settle($1, $2, $3::json, $4, $5)"), in.scope, message.Key, stored, message.Tenant, status)
	batch.Queue("COMMIT") // not executed behind an error
	return stored, tx.SendBatch(ctx, batch).Close()
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
	said, isSaid := errors.AsType[verdict](failure)
	if isSaid && said.after < 0 {
		return in.bury(ctx, message, said.Error())
	}
	reason, _, _ := strings.Cut(failure.Error(), "\n")
	// If PostgreSQL is away, this statement fails too, and the attempt does not count.
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

// printable makes a text that PostgreSQL can store: UTF-8 without NUL.
func printable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\ufffd"), "\x00", "\ufffd")
}

// limited is the context of a step before or after the handler. It does not end with ctx, so that a
// drain finishes the step.
func limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), stepLimit)
}
