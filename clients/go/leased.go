package oncebox

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Effects outside the database, under a lease. The key is claimed first, and its lease is renewed
// while the handler runs; each effect is recorded before it is called and remembered after; a
// process that takes over from a dead one continues after the last effect that is known. As the
// crates oncebox-inbox and oncebox-claims do, in the same tables.

// Leased is a handler with effects outside the database.
type Leased struct {
	// Handle handles a message; see [LeasedHandler].
	Handle LeasedHandler
	// Finish, unless nil, writes in the transaction that ends the claim. It may run again after a
	// conflict, or in a later run.
	Finish func(ctx context.Context, tx pgx.Tx, message Message, reply any) error
	// Lease is the time after which another process may take over from one that is dead or hangs.
	// Default: 20 s; at most an hour.
	Lease time.Duration
}

// LeasedHandler handles one message, without a transaction. It calls others through [Effect.Do] only,
// and returns as a [Handler] does. It may run more than once for a message: between its effects it must
// depend on nothing but the message and their results. Its context ends when the lease is lost.
type LeasedHandler func(ctx context.Context, lease *Lease, message Message) (reply any, err error)

// Lease is the right to work on a key for a time, which is renewed while its handler runs.
type Lease struct {
	// Message is the one that is handled.
	Message
	// Attempts is how often the key was claimed, this time included.
	Attempts int64

	in           *Inbox
	owner, epoch string
	mutex        sync.Mutex
	// until is not later than the end of the lease in the database.
	until time.Time
	// effects has the state of each effect of this run.
	effects map[string]state
	// hasLost says that nothing more may be called or written.
	hasLost bool
}

// How long the last statements of a claim may take.
const endLimit = 10 * time.Second

// awayError says that PostgreSQL did not take a statement of the lease's own.
type awayError struct{ error }

func (a awayError) Unwrap() error { return a.error }

// RunLeased is Run for a handler with effects outside the database, under a lease. Its scope is of
// another mode than that of other handlers, and can have no batches.
func (c *Consumer) RunLeased(ctx context.Context, inbox *Inbox, handler Leased) error {
	alone := *c
	alone.options.Batch = 1
	return alone.run(ctx, &batch{Inbox: inbox.under(handler)})
}

// RunLeased is Run for a handler with effects outside the database.
func (in *Inbox) RunLeased(ctx context.Context, handler Leased, message Message) (Verdict, error) {
	return in.under(handler).Run(ctx, nil, message)
}

// under is this inbox, which claims its keys under a lease.
func (in *Inbox) under(handler Leased) *Inbox {
	handler.Lease = cmp.Or(handler.Lease, 20*time.Second)
	leased := *in
	leased.leased = &handler
	return &leased
}

// runLeased claims the key, or finds out why not, and runs the handler.
func (in *Inbox) runLeased(ctx context.Context, message Message) (Verdict, error) {
	lease, answer, err := in.lease(ctx, message, "false")
	if answer.Name == "alone" {
		if !in.suspected.TryLock() {
			return in.later(), nil
		}
		defer in.suspected.Unlock()
		slog.Warn(suspect, "scope", in.scope, "key", message.Key)
		lease, answer, err = in.lease(ctx, message, "true")
	}
	switch {
	case err != nil:
		return Verdict{}, fmt.Errorf("claim the key: %w", err)
	case answer.Name == "mismatch":
		return in.bury(ctx, message, mismatch, "")
	case answer.Name != "new":
		return answer, nil
	case lease.Attempts > in.options.AttemptsMax:
		return lease.bury(ctx, noTrace)
	}
	return lease.run(ctx)
}

// lease claims the key.
func (in *Inbox) lease(ctx context.Context, message Message, isAlone string) (*Lease, Verdict, error) {
	answer := Verdict{After: in.pause()}
	lease := &Lease{Message: message, in: in, owner: fmt.Sprintf("%x", random()), effects: map[string]state{}, until: time.Now().Add(in.leased.Lease)}
	given := in.named(message, "payload bytea", bytea(message.Payload), "owner uuid", lease.owner, "lease interval", interval(in.leased.Lease),
		"message_id bigint", messageID(message), "is_alone boolean", isAlone)
	call, values := given.written("claim_leased")
	var outcome, attempts string
	err := in.read(ctx, stepLimit, "SELECT answer, coalesce(outcome::text, ''), coalesce(reason, ''), coalesce(epoch, 0)::text,"+
		" coalesce(attempts, 0)::text FROM "+call, values, &answer.Name, &outcome, &answer.Reason, &lease.epoch, &attempts)
	if outcome != "" {
		answer.Reply = json.RawMessage(outcome)
	}
	lease.Attempts, _ = strconv.ParseInt(attempts, 10, 64)
	return lease, answer, err
}

func random() (id [16]byte) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}

// named are the arguments of the lease's calls.
func (l *Lease) named(more ...any) arguments {
	return append(l.in.named(l.Message, "owner uuid", l.owner, "epoch bigint", l.epoch), more...)
}

// run runs the handler while the lease is renewed, and ends the claim or gives it back.
func (l *Lease) run(ctx context.Context) (Verdict, error) {
	working, renewed := l.renewing(ctx)
	var value any
	err := guarded(working, l.in.options.HandlerTimeout, nil, l.Key, func(ctx context.Context, _ pgx.Tx) (err error) {
		handler := l.in.traced(func(ctx context.Context, _ pgx.Tx, message Message) (any, error) {
			return l.in.leased.Handle(ctx, l, message)
		})
		value, err = handler(ctx, nil, l.Message)
		return err
	})
	var end ending
	if err == nil && l.open() != "" {
		err = errors.New("the handler went on after an effect")
	} else if err == nil {
		end, err = asEnding(value)
	}
	for round := 1; err == nil; round++ {
		if err = l.finish(ctx, working, renewed, end, value); !isConflict(err) || round == conflictRounds {
			break
		}
		rest()
		working, renewed = l.renewing(ctx)
		err = nil
	}
	renewed()
	if err != nil {
		return l.failed(ctx, err)
	}
	if l.Attempts > 1 {
		_, _ = l.in.call(ctx, "forget_attempts", l.in.named(l.Message))
	}
	return end.verdict(), nil
}

// finish has the handler write, and ends the claim in the same transaction.
func (l *Lease) finish(ctx, working context.Context, renewed func(), end ending, value any) error {
	current, isWritten := &transaction{}, false
	err := current.within(ctx, l.in.pool, func(step context.Context, connection *pgxpool.Conn) error {
		tx, err := connection.BeginTx(step, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
		if err == nil {
			limit := fmt.Sprintf("%dms", (l.in.options.HandlerTimeout + endLimit).Milliseconds())
			err = tx.QueryRow(step, "SELECT pg_current_xact_id()::text, "+session+", set_config('idle_in_transaction_session_timeout', $1::text, true)", limit).
				Scan(&current.xid, &current.session, nil)
		}
		if err != nil {
			return awayError{err}
		}
		if l.in.leased.Finish != nil {
			err = guarded(working, l.in.options.HandlerTimeout, tx, l.Key, func(ctx context.Context, tx pgx.Tx) error {
				return l.in.leased.Finish(ctx, tx, l.Message, value)
			})
		}
		// A renewal would take a claim that has just ended for lost.
		if renewed(); err != nil || l.isLost() {
			return cmp.Or(err, ErrLeaseLost)
		}
		isWritten = true
		call, values := l.named("outcome json", string(end.reply), "status text", end.status).written("finish_leased")
		return commit(ctx, tx, current, l.in.sql("SELECT "+call+"::text"), values...)
	})
	switch {
	case code(err) == "OB014":
		err = l.lose(takenOver)
	case !current.isBegun, current.isUnsure, isWritten && isSpoiling(err):
		err = awayError{err}
	case err != nil:
		// Of a lost connection the id tells nothing: a server that crashes gives ids that it has lost to others.
		if current.isClosed && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		var status string
		if problem := l.in.ask(ctx, &status, "SELECT coalesce(pg_xact_status($1::xid8), '')", current.xid); problem != nil {
			return awayError{problem}
		} else if status == "committed" {
			return GiveUp(committed + ": " + reasonOf(err))
		}
	}
	return err
}

// failed gives the claim back for another run, or ends it as dead.
func (l *Lease) failed(ctx context.Context, failure error) (Verdict, error) {
	if l.isLost() || errors.Is(failure, ErrLeaseLost) {
		return l.in.later(), nil
	}
	reason := l.explained(reasonOf(failure))
	if away, isAway := errors.AsType[awayError](failure); isAway {
		// Perhaps it is back already.
		soon, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, _ = l.release(soon, l.in.pause(), reason, "false")
		return Verdict{}, away
	}
	said, _ := errors.AsType[verdict](failure)
	settling, isSettling := errors.AsType[settlingError](failure)
	after := min(said.after, retryAfterMax)
	isAttempt := "true"
	switch {
	case said.kind == "dead":
		return l.bury(ctx, said.Error())
	case errors.Is(failure, ErrRejected):
		return l.bury(ctx, reason)
	case said.kind == "snooze":
		isAttempt = "false"
		answer, err := l.in.snooze(ctx, l.Message, said, reason)
		if err != nil {
			return answer, err
		}
		if answer.Name == "dead" {
			return l.bury(ctx, answer.Reason)
		}
		after = answer.After
	case isSettling:
		isAttempt, after = "false", min(settling.after, l.in.options.BackoffMax)
		slog.Info("the call of an effect may still arrive", "scope", l.in.scope, "key", l.Key, "after", after, "reason", reason)
	case l.Attempts >= l.in.options.AttemptsMax:
		return l.bury(ctx, fmt.Sprintf("delivery limit of %d reached: %s", l.in.options.AttemptsMax, reason))
	case said.kind != "retry":
		first, longest := l.in.pauses()
		after = grown(first, longest, l.Attempts)
	}
	if isHeld, err := l.release(ctx, after, reason, isAttempt); err != nil || !isHeld {
		return l.in.later(), err
	}
	if isAttempt == "true" {
		// For operators; the claim itself counts.
		_, _ = l.in.call(ctx, "attempt_failed", append(l.in.named(l.Message, "reason text", reason, "subject text", printable(l.Subject),
			"pause float8", seconds(after), "pause_max float8", seconds(after)), l.Origin.stored()...))
		slog.Warn("attempt failed, will retry", "scope", l.in.scope, "key", l.Key, "attempt", l.Attempts, "after", after, "reason", reason)
	}
	return Verdict{Name: "retry", Reason: reason, After: after}, nil
}

// release gives the claim back, to be taken again after a pause.
func (l *Lease) release(ctx context.Context, pause time.Duration, reason, isAttempt string) (isHeld bool, err error) {
	return l.held(ctx, "release_leased", "pause interval", interval(pause), "reason text", reason,
		"is_unknown boolean", strconv.FormatBool(l.open() != ""), "is_attempt boolean", isAttempt)
}

// bury ends the claim as dead, with its dead letter.
func (l *Lease) bury(ctx context.Context, reason string) (Verdict, error) {
	reason = printable(l.explained(reason))
	isHeld, err := l.held(ctx, "bury_leased", append(arguments{"payload bytea", bytea(l.Payload), "reason text", reason, "subject text", l.Subject,
		"headers jsonb", storedHeaders(l.Message), "deliveries bigint", deliveries(l.Message)}, l.Origin.stored()...)...)
	switch {
	case err != nil:
		return Verdict{}, fmt.Errorf("record a dead letter (%s): %w", reason, err)
	case !isHeld:
		return l.in.later(), nil
	}
	slog.Warn("dead letter", "scope", l.in.scope, "key", l.Key, "reason", reason)
	return Verdict{Name: "dead", Reason: reason}, nil
}
