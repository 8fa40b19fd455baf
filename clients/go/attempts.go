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

// A handler can ask for a retry after so long.
const retryAfterMax = 24 * time.Hour

const noTrace = "delivery limit reached, and the last attempt left no trace: did it end the process?"

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
		slog.Warn("the message runs alone: a run of it left no trace and may have ended its process", "scope", in.scope, "key", message.Key)
		begun, err = in.begin(ctx, message, "true")
	}
	switch {
	case err != nil:
		return Verdict{}, fmt.Errorf("record that a run begins: %w", err)
	case begun == "dead":
		return in.bury(ctx, message, noTrace, "")
	}
	answer, err := in.run(ctx, handler, message)
	if err != nil || answer.Name == "in_flight" {
		// The run was no attempt. If this fails, the message runs alone once, which counts nothing.
		var canceled string
		statement := "SELECT {schema}.cancel_attempt($1::text, $2::text, $3::text, $4::text, $5::bigint, $6::timestamptz)::text"
		_ = in.ask(ctx, &canceled, statement, append([]any{in.scope, message.Key, message.Tenant}, message.Origin.parameters()...)...)
	}
	return answer, err
}

func (in *Inbox) begin(ctx context.Context, message Message, isAlone string) (begun string, err error) {
	parameters := append([]any{in.scope, message.Key, message.Tenant}, message.Origin.parameters()...)
	parameters = append(parameters, printable(message.Subject), strconv.FormatInt(in.options.AttemptsMax, 10), isAlone)
	statement := "SELECT {schema}.begin_attempt($1::text, $2::text, $3::text, $4::text, $5::bigint, $6::timestamptz, $7::text, $8::bigint, $9::boolean)"
	err = in.ask(ctx, &begun, statement, parameters...)
	return begun, err
}

// failed counts a failed attempt, and gives the message up when it has reached AttemptsMax.
func (in *Inbox) failed(ctx context.Context, message Message, failure error) (Verdict, error) {
	said, isSaid := errors.AsType[verdict](failure)
	if isSaid && said.after < 0 {
		return in.bury(ctx, message, said.Error(), "")
	}
	reason := reasonOf(failure)
	first, longest := in.pauses()
	if isSaid {
		first = min(said.after, retryAfterMax)
		longest = first
	}
	// If PostgreSQL is away, this statement fails too, and the attempt does not count.
	var counted string
	parameters := append([]any{in.scope, message.Key, message.Tenant}, message.Origin.parameters()...)
	parameters = append(parameters, reason, printable(message.Subject), seconds(first), seconds(longest))
	statement := "SELECT {schema}.attempt_failed($1::text, $2::text, $3::text, $4::text, $5::bigint, $6::timestamptz," +
		" $7::text, $8::text, $9::float8, $10::float8)::text"
	if err := in.ask(ctx, &counted, statement, parameters...); err != nil {
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
	var forgotten string
	statement := "SELECT {schema}.forget_attempts($1::text, $2::text, $3::text)::text"
	_ = in.ask(ctx, &forgotten, statement, in.scope, message.Key, message.Tenant)
}

// bury gives a message up and records it as a dead letter, unless a copy was handled meanwhile.
func (in *Inbox) bury(ctx context.Context, message Message, reason, committedBy string) (Verdict, error) {
	answer := Verdict{Reason: printable(reason), After: in.pause()}
	statement := "SELECT {schema}.bury($1::text, nullif($2::text, ''), $3::bytea, $4::text, $5::text, $7::jsonb, $8::text, " + messageID +
		", $11::text, $12::bigint, $13::timestamptz, $9::bigint, nullif($10::text, '')::xid8)"
	parameters := append([]any{in.scope, message.Key, bytea(message.Payload), answer.Reason, message.Subject, message.Headers["oncebox-id"],
		object(message.Headers), message.Tenant, deliveries(message), committedBy}, message.Origin.parameters()...)
	if err := in.ask(ctx, &answer.Name, statement, parameters...); err != nil {
		return Verdict{}, fmt.Errorf("record a dead letter (%s): %w", answer.Reason, err)
	}
	if answer.Name == "dead" || answer.Name == "mismatch" {
		slog.Warn("dead letter", "scope", in.scope, "key", message.Key, "reason", answer.Reason)
	}
	return answer, nil
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
