package oncebox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

const (
	// A handler can ask for a retry after so long.
	retryAfterMax = 24 * time.Hour
	// The pause of a snooze: so that nothing spins, and a system that is back is noticed.
	snoozeMin, snoozeMax = 100 * time.Millisecond, time.Hour
)

const (
	noTrace = "delivery limit reached, and the last attempt left no trace: did it end the process?"
	suspect = "the message runs alone: a run of it left no trace and may have ended its process"
)

// runAgain runs the handler for a message that was delivered before. If the process ends meanwhile, the
// record shows it.
func (in *Inbox) runAgain(ctx context.Context, handler Handler, message Message) (Verdict, error) {
	begun, err := in.begin(ctx, message, "false")
	if err == nil && begun == "alone" {
		// The message that runs now may be the one that ends the process.
		if !in.suspected.TryLock() {
			return Verdict{Name: "in_flight", After: in.pause()}, nil
		}
		defer in.suspected.Unlock()
		slog.Warn(suspect, "scope", in.scope, "key", message.Key)
		begun, err = in.begin(ctx, message, "true")
	}
	switch {
	case err != nil:
		return Verdict{}, fmt.Errorf("record that a run begins: %w", err)
	case begun == "dead":
		return in.bury(ctx, message, noTrace, "")
	case begun != "run":
		rest, err := time.ParseDuration(begun + "s")
		return Verdict{Name: "retry", Reason: "its pause is not over", After: rest}, err
	}
	answer, err := in.run(ctx, handler, message)
	if err != nil || answer.Name == "in_flight" {
		// The run was no attempt. If this fails, the message runs alone once, which counts nothing.
		_, _ = in.call(ctx, "cancel_attempt", append(in.named(message), message.Origin.stored()...))
	}
	return answer, err
}

// begin records that a run begins, unless the pause of an earlier one is not over: then it answers the
// seconds that are left. A process that has died, or was restarted, cannot have waited for them.
func (in *Inbox) begin(ctx context.Context, message Message, isAlone string) (begun string, err error) {
	given := append(in.named(message, "attempts_max bigint", strconv.FormatInt(in.options.AttemptsMax, 10),
		"is_alone boolean", isAlone, "subject text", printable(message.Subject)), message.Origin.stored()...)
	call, values := given.written("begin_attempt")
	mine := "WHERE scope = $1::text AND key = $2::text AND tenant = $3::text AND message = ''"
	if last := len(values); message.Origin != nil {
		// As inbox_copy() has it, of times with the precision of PostgreSQL.
		mine = strings.Replace(mine, "''", fmt.Sprintf("concat_ws(' ', $%d::text, $%d::bigint,"+
			" floor(extract(epoch FROM $%d::timestamptz) * 1000000)::bigint)", last-2, last-1, last), 1)
	}
	err = in.ask(ctx, &begun, "SELECT CASE WHEN w.rest > 0 THEN w.rest::text ELSE "+call+" END FROM ("+
		"SELECT extract(epoch FROM max(p.due_at) - clock_timestamp()) AS rest FROM ("+
		"SELECT due_at FROM {schema}.inbox_attempt "+mine+" UNION ALL SELECT due_at FROM {schema}.inbox_snooze "+mine+
		") AS p) AS w", values...)
	return begun, err
}

// failed counts a failed attempt, and gives the message up when it has reached AttemptsMax.
func (in *Inbox) failed(ctx context.Context, message Message, failure error) (Verdict, error) {
	reason, first, longest := reasonOf(failure), time.Duration(0), time.Duration(0)
	switch said, _ := errors.AsType[verdict](failure); said.kind {
	case "dead":
		return in.bury(ctx, message, said.Error(), "")
	case "snooze":
		answer, err := in.snooze(ctx, message, said, reason)
		if answer.Name == "dead" {
			return in.bury(ctx, message, answer.Reason, "")
		}
		return answer, err
	case "retry":
		first = min(said.after, retryAfterMax)
		longest = first
	default:
		first, longest = in.pauses()
	}
	// If PostgreSQL is away, this statement fails too, and the attempt does not count.
	counted, err := in.call(ctx, "attempt_failed", append(in.named(message, "reason text", reason, "subject text", printable(message.Subject),
		"pause float8", seconds(first), "pause_max float8", seconds(longest)), message.Origin.stored()...))
	if err != nil {
		return Verdict{}, fmt.Errorf("count a failed attempt (%s): %w", reason, err)
	}
	attempts, _ := strconv.ParseInt(counted, 10, 64)
	if attempts >= in.options.AttemptsMax {
		if _, isIncomplete := errors.AsType[wrongError](failure); isIncomplete {
			message.Key = ""
		}
		return in.bury(ctx, message, fmt.Sprintf("delivery limit of %d reached: %s", in.options.AttemptsMax, reason), "")
	}
	after := grown(first, longest, attempts)
	slog.Warn("attempt failed, will retry", "scope", in.scope, "key", message.Key, "attempt", attempts, "after", after, "reason", reason)
	return Verdict{Name: "retry", Reason: reason, After: after}, nil
}

// snooze records that the handler wants the message later. It is dead when that has been so for
// SnoozeMax.
func (in *Inbox) snooze(ctx context.Context, message Message, said verdict, reason string) (Verdict, error) {
	after := min(max(said.after, snoozeMin), snoozeMax)
	isShort, err := in.call(ctx, "snooze", append(in.named(message, "pause interval", interval(after), "reason text", reason,
		"deliveries bigint", deliveries(message), "longest interval", interval(in.options.SnoozeMax)), message.Origin.stored()...))
	switch {
	case err != nil:
		return Verdict{}, fmt.Errorf("record a snooze (%s): %w", reason, err)
	case isShort != "true":
		return Verdict{Name: "dead", Reason: fmt.Sprintf("snoozed for too long, %s: %s", in.options.SnoozeMax, reason)}, nil
	}
	slog.Info("snoozed", "scope", in.scope, "key", message.Key, "after", after, "reason", reason)
	return Verdict{Name: "retry", Reason: reason, After: after}, nil
}

// incomplete counts a failed attempt at a message whose payload cannot be had; in the end it is a dead
// letter without a key, since only the payload tells copies of a key from others.
func (in *Inbox) incomplete(ctx context.Context, message Message, problem error) (Verdict, error) {
	identified, err := in.identify(message)
	if err != nil {
		return in.bury(ctx, message, err.Error(), "")
	}
	return in.failed(ctx, identified, problem)
}

// forgetAttempts forgets the attempts at a message that has ended. If this fails, its key says that it
// has.
func (in *Inbox) forgetAttempts(ctx context.Context, message Message, answer Verdict) {
	hasEnded := answer.Name == "handled" || answer.Name == "replayed" || answer.Name == "rejected"
	if message.Deliveries <= 1 || !hasEnded {
		return
	}
	_, _ = in.call(ctx, "forget_attempts", in.named(message))
}

// bury gives a message up and records it as a dead letter, unless a copy was handled meanwhile.
func (in *Inbox) bury(ctx context.Context, message Message, reason, committedBy string) (answer Verdict, err error) {
	reason = printable(reason)
	name, err := in.call(ctx, "bury", append(in.named(message, "payload bytea", bytea(message.Payload), "reason text", reason,
		"subject text", message.Subject, "headers jsonb", object(message.Headers), "message_id bigint", messageID(message),
		"deliveries bigint", deliveries(message), "committed_by xid8", optional(committedBy)), message.Origin.stored()...))
	if err != nil {
		return Verdict{}, fmt.Errorf("record a dead letter (%s): %w", reason, err)
	}
	if name == "dead" || name == "mismatch" {
		slog.Warn("dead letter", "scope", in.scope, "key", message.Key, "reason", reason)
	}
	return Verdict{Name: name, Reason: reason, After: in.pause()}, nil
}

// pauses are the pause after a first failure, and the longest one, with jitter.
func (in *Inbox) pauses() (first, longest time.Duration) {
	jitter := 0.5 + rand.Float64()/2
	return time.Duration(jitter * float64(in.options.Backoff)), time.Duration(jitter * float64(in.options.BackoffMax))
}

// pause is a short one, without a failure.
func (in *Inbox) pause() time.Duration {
	first, longest := in.pauses()
	return min(first, longest)
}

// grown is the pause after so many failures: it doubles with each.
func grown(first, longest time.Duration, attempts int64) time.Duration {
	// Compared before it is doubled, since so many doublings overflow.
	if doublings := min(attempts-1, 62); first <= longest>>doublings {
		return first << doublings
	}
	return longest
}
