package oncebox

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// How often a message is run again at once after a conflict with another transaction.
	conflictRounds = 5
	// The most bytes of a stored reply.
	replyMax  = 1 << 20
	mismatch  = "the key was used before with another payload"
	committed = "the handler sent COMMIT by itself, which stays, and then failed"
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
	// SnoozeMax is how long a handler may snooze a message, until it is given up. Default: 24 hours.
	SnoozeMax time.Duration
	// Retention is how long a key is kept at least; 0 means for ever.
	Retention time.Duration
	// Tracer, unless nil, starts a span for each run of a handler.
	Tracer Tracer
	// Schema is the PostgreSQL schema with the tables. Default: oncebox.
	Schema string
}

// run is a message, and the transaction in which it is handled.
type run struct {
	Message
	transaction
	// began is when the handler began.
	began time.Time
}

// Inbox runs handlers once per key, over connections of its pool.
type Inbox struct {
	database
	scope   string
	options InboxOptions
	// suspected is held by the one message that runs although a run of it may have ended its process.
	suspected *sync.Mutex
	// leased is nil unless the keys are claimed under a lease.
	leased *Leased
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
	options.SnoozeMax = cmp.Or(options.SnoozeMax, 24*time.Hour)
	return &Inbox{database{pool, cmp.Or(options.Schema, "oncebox")}, scope, options, &sync.Mutex{}, nil}
}

// Register records the scope and its retention; it fails when the scope is in use in the leased
// mode.
func (in *Inbox) Register(ctx context.Context) error {
	mode := "transaction"
	if in.leased != nil {
		mode = "lease"
	}
	return in.register(ctx, in.scope, in.options.Retention, "consumer", mode)
}

// Run handles one message: it runs the handler, or answers a copy from the stored outcome. An error
// means that PostgreSQL could not record the result: run the message again later.
func (in *Inbox) Run(ctx context.Context, handler Handler, message Message) (Verdict, error) {
	message.Tenant, message.Key = "", ""
	identified, err := in.identify(message)
	if err != nil {
		return in.bury(ctx, message, err.Error(), "")
	}
	switch {
	case in.leased != nil:
		return in.runLeased(ctx, identified)
	case message.Deliveries > 1:
		return in.runAgain(ctx, handler, identified)
	}
	return in.run(ctx, handler, identified)
}

func (in *Inbox) run(ctx context.Context, handler Handler, identified Message) (Verdict, error) {
	for round := 1; ; round++ {
		current := &run{Message: identified}
		answer, err := in.attempt(ctx, handler, current)
		if err == nil {
			in.forgetAttempts(ctx, identified, answer)
		}
		if err == nil || !current.isBegun {
			return answer, err
		}
		if current.isClosed && !current.began.IsZero() {
			in.endHolder(ctx, current)
		}
		if current.began.IsZero() && isConnectionLost(err) {
			// No handler has run: that is no attempt. Each round has closed a connection.
			if round < conflictRounds {
				continue
			}
			return answer, fmt.Errorf("claim the key: %w", err)
		}
		if isCommitted, problem := in.hasCommitted(ctx, current); problem != nil {
			return Verdict{}, problem
		} else if isCommitted {
			return in.bury(ctx, identified, committed+": "+reasonOf(err), current.xid)
		}
		if !isConflict(err) || round == conflictRounds {
			return in.failed(ctx, identified, err)
		}
		rest()
	}
}

// rest lets the other transaction of a conflict go first.
func rest() { time.Sleep(time.Duration(5+rand.IntN(95)) * time.Millisecond) }

// identify reads tenant and key from the headers, and sets the scope.
func (in *Inbox) identify(message Message) (Message, error) {
	message.Scope = in.scope
	if header := in.options.TenantHeader; header != "" {
		tenant, _, err := single(message.Headers, header)
		if err != nil {
			return message, err
		}
		isText := utf8.ValidString(tenant) && !strings.ContainsFunc(tenant, unicode.IsControl)
		if bytes := len(tenant); bytes < 1 || bytes > 255 || !isText {
			return message, fmt.Errorf("tenant header %s is not 1 to 255 bytes without control characters", header)
		}
		message.Tenant = tenant
	}
	for _, name := range in.options.KeyHeaders {
		key, isThere, err := single(message.Headers, name)
		if err == nil && isThere {
			err = CheckKey(key)
		}
		if err != nil {
			return message, err
		}
		if isThere {
			message.Key = key
			return message, nil
		}
	}
	return message, fmt.Errorf("no key: none of the headers %s is present", strings.Join(in.options.KeyHeaders, ", "))
}

// attempt claims the key, runs the handler and stores the outcome, in one transaction.
func (in *Inbox) attempt(ctx context.Context, handler Handler, current *run) (answer Verdict, err error) {
	err = current.within(ctx, in.pool, func(step context.Context, connection *pgxpool.Conn) (err error) {
		var tx pgx.Tx
		tx, answer, err = in.claim(step, connection, current)
		if answer.Name == "mismatch" {
			return GiveUp(mismatch)
		}
		if err != nil || answer.Name != "handled" {
			return err
		}
		current.began = time.Now()
		end, err := in.handle(ctx, handler, tx, current.Message)
		if err != nil {
			return err
		}
		answer = end.verdict()
		return in.commit(ctx, tx, current, string(end.reply), end.status)
	})
	return answer, err
}

// claim begins the transaction and claims a key that is probably new, in one round trip; of another
// key it asks claim() for the state. DEFERRABLE marks a transaction that an inbox will commit: the
// claim is sent before BEGIN is answered, and without the mark it claims nothing.
func (in *Inbox) claim(ctx context.Context, connection *pgxpool.Conn, current *run) (pgx.Tx, Verdict, error) {
	limit := fmt.Sprintf("%dms", (in.options.HandlerTimeout + 5*time.Second).Milliseconds())
	fingerprint := sha256.Sum256(append([]byte("oncebox payload 1\x00"), current.Payload...))
	id := messageID(current.Message)
	batch := &pgx.Batch{}
	batch.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted, DeferrableMode: pgx.Deferrable})
	// This is the INSERT of claim(), which costs PostgreSQL more as a whole.
	batch.Queue(in.sql("INSERT INTO {schema}.inbox (scope, tenant, key, fingerprint, message_id, status)"+
		" SELECT s.scope, $5::text, $3::text, $7::bytea, $6::bigint, 'completed' FROM {schema}.inbox_scope AS s"+
		" WHERE s.scope = $2::text AND s.mode = 'transaction' AND pg_try_advisory_xact_lock($4::bigint)"+
		" AND set_config('idle_in_transaction_session_timeout', $1::text, true) IS NOT NULL"+
		" AND current_setting('transaction_deferrable') <> current_setting('default_transaction_deferrable')"+
		" ON CONFLICT ON CONSTRAINT inbox_pkey DO NOTHING RETURNING pg_current_xact_id()::text, "+session),
		limit, in.scope, current.Key, strconv.FormatInt(in.lock(current.Message), 10), current.Tenant, id, bytea(fingerprint[:]))
	results := connection.SendBatch(ctx, batch)
	_, _ = results.Exec() // if BEGIN fails, the claim returns the same error
	err := results.QueryRow().Scan(&current.xid, &current.session)
	tx := results.Tx()
	closed := results.Close()
	if !errors.Is(err, pgx.ErrNoRows) {
		return tx, Verdict{Name: "handled"}, cmp.Or(err, closed) // once the handler has returned
	}
	if closed != nil {
		return tx, Verdict{}, closed
	}
	answer := Verdict{After: in.pause()}
	var outcome, xid, then string
	statement := "SELECT answer, coalesce(outcome::text, ''), coalesce(reason, ''), coalesce(pg_current_xact_id_if_assigned()::text, ''), " +
		session + ", set_config('idle_in_transaction_session_timeout', $1::text, true)" +
		" FROM {schema}.claim($2::text, $3::text, $4::bytea, $5::text, $6::bigint)"
	err = tx.QueryRow(ctx, in.sql(statement), limit, in.scope, current.Key, bytea(current.Payload), current.Tenant, id).
		Scan(&answer.Name, &outcome, &answer.Reason, &xid, &then, nil)
	if outcome != "" {
		answer.Reply = json.RawMessage(outcome)
	}
	if answer.Name == "new" {
		answer.Name, current.xid, current.session = "handled", xid, then
	}
	return tx, answer, err
}

// commit stores the reply, unless the claim has stored that there is none, and commits.
func (in *Inbox) commit(ctx context.Context, tx pgx.Tx, current *run, reply, status string) error {
	if reply == "null" && status == "completed" {
		return commit(ctx, tx, &current.transaction, "")
	}
	settle := in.sql("SELECT {schema}.settle($1::text, $2::text, $3::json, $4::text, $5::text)::text")
	return commit(ctx, tx, &current.transaction, settle, in.scope, current.Key, reply, current.Tenant, status)
}

// handle runs the handler, and returns how it has ended.
func (in *Inbox) handle(ctx context.Context, handler Handler, tx pgx.Tx, message Message) (end ending, err error) {
	err = guarded(ctx, in.options.HandlerTimeout, tx, message.Key, func(ctx context.Context, tx pgx.Tx) error {
		value, err := in.traced(handler)(ctx, tx, message)
		if err == nil {
			end, err = asEnding(value)
		}
		return err
	})
	return end, err
}

// ending is how a handler has ended: its reply as JSON, and the status of its key.
type ending struct {
	reply  json.RawMessage
	status string
}

func asEnding(value any) (end ending, err error) {
	end.status = "completed"
	if reject, isPointer := value.(*Reject); isPointer && reject != nil {
		value = *reject
	}
	if reject, isReject := value.(Reject); isReject {
		end.status, value = "rejected", reject.Reply
	}
	if end.reply, err = json.Marshal(value); err != nil {
		return end, GiveUp("the handler's reply has no JSON: " + err.Error())
	}
	// It would be as long at each attempt.
	if len(end.reply) > replyMax {
		return end, GiveUp(fmt.Sprintf("the handler's reply is %d bytes of JSON; the limit is %d bytes (1 MiB)", len(end.reply), replyMax))
	}
	return end, nil
}

func (e ending) verdict() Verdict {
	if e.status == "rejected" {
		return Verdict{Name: e.status, Reply: e.reply}
	}
	return Verdict{Name: "handled", Reply: e.reply}
}

// hasCommitted says whether the handler has committed the claim by itself, so that a copy would be
// answered as handled.
func (in *Inbox) hasCommitted(ctx context.Context, current *run) (bool, error) {
	if current.xid == "" || current.isUnsure {
		return false, nil // the COMMIT may have been ours
	}
	// Its row says so. The id alone does not: a server that crashes forgets ids that it has not written to
	// disk, and gives them to other transactions.
	var count string
	err := in.ask(ctx, &count, in.sql("SELECT count(*)::text FROM {schema}.inbox WHERE scope = $1::text AND tenant = $2::text"+
		" AND key = $3::text AND xmin = $4::text::xid8::xid"), in.scope, current.Tenant, current.Key, current.xid)
	return count != "0", err
}

// endHolder ends the session that holds the key, since a statement may go on there although its
// connection is closed.
func (in *Inbox) endHolder(ctx context.Context, current *run) {
	var ended string
	err := in.ask(ctx, &ended, "SELECT coalesce(bool_and(pg_terminate_backend(held.pid, 1000)), true)::text"+
		" FROM pg_locks AS held JOIN pg_stat_activity AS holder ON holder.pid = held.pid"+
		" WHERE held.locktype = 'advisory' AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())"+
		" AND held.objsubid = 1 AND (held.classid::bigint << 32) | held.objid::bigint = $1::bigint AND held.granted"+
		" AND holder.xact_start <= clock_timestamp() - $2::bigint * interval '1 millisecond'",
		strconv.FormatInt(in.lock(current.Message), 10), strconv.FormatInt(time.Since(current.began).Milliseconds(), 10))
	if err != nil {
		slog.Warn("a statement of the handler may still run", "scope", in.scope, "key", current.Key, "error", err)
	}
}
