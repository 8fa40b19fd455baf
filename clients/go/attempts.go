package oncebox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"time"
)

const (
	// The longest time after which a handler can ask for a retry.
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
			return in.later(), nil
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
	case begun == "wait":
		return in.rest(ctx, message)
	}
	answer, err := in.run(ctx, handler, message)
	if err != nil || answer.Name == "in_flight" {
		// The run was no attempt. If this fails, the message runs alone once, which counts nothing.
		_, _ = in.call(ctx, "cancel_attempt", append(in.named(message), message.Origin.stored()...))
	}
	return answer, err
}

func (in *Inbox) begin(ctx context.Context, message Message, isAlone string) (begun string, err error) {
	return in.call(ctx, "begin_attempt", append(in.named(message, "attempts_max bigint", strconv.FormatInt(in.options.AttemptsMax, 10),
		"is_alone boolean", isAlone, "subject text", printable(message.Subject)), message.Origin.stored()...))
}

// rest is the answer where the pause of an earlier run is not over: a process that has died, or was
// restarted, cannot have waited for it.
func (in *Inbox) rest(ctx context.Context, message Message) (Verdict, error) {
	left, err := in.call(ctx, "pause_left", append(in.named(message), message.Origin.stored()...))
	after, _ := strconv.ParseFloat(left, 64)
	return Verdict{Name: "retry", Reason: "its pause is not over", After: time.Duration(after * float64(time.Second))}, err
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
		"subject text", message.Subject, "headers jsonb", storedHeaders(message), "message_id bigint", messageID(message),
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

// later is the answer while another process works on the message.
func (in *Inbox) later() Verdict { return Verdict{Name: "in_flight", After: in.pause()} }

// pause is a short one, without a failure.
func (in *Inbox) pause() time.Duration {
	first, longest := in.pauses()
	return min(first, longest)
}

// grown is the pause after a number of failures: it doubles with each.
func grown(first, longest time.Duration, attempts int64) time.Duration {
	// Compared before it is doubled, since too many doublings overflow.
	if doublings := min(attempts-1, 62); first <= longest>>doublings {
		return first << doublings
	}
	return longest
}
