package oncebox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Found is a provider's answer about a call whose outcome is not known.
type Found string

const (
	// Happened: the effect has happened, and here is its result.
	Happened Found = "happened"
	// Absent: the provider knows nothing of it. That is believed once a call can no longer arrive.
	Absent Found = "absent"
	// Unknown: the provider cannot tell yet.
	Unknown Found = "unknown"
)

// Effect is an effect outside the database, which happens once for a key: a charge, a mail.
type Effect[T any] struct {
	// Step names it among the effects of the message, the same in each run: "gateway-charge".
	Step string
	// Call calls the provider, and hands it the key, which is that of the message and the step. An
	// error that is neither [Rejected] nor [NotSent] says that the effect may have happened.
	Call func(ctx context.Context, key string) (T, error)
	// Reconcile asks the provider whether the effect has happened. It changes nothing.
	Reconcile func(ctx context.Context, key string) (T, Found, error)
	// IsProviderIdempotent, instead of Reconcile: the provider acts once for a key, however often it is
	// called, for as long as the message can come again.
	IsProviderIdempotent bool
	// Timeout is how long a call or a question may take. Default: 30 s.
	Timeout time.Duration
	// SettlesWithin is how long after its beginning a call may still arrive; until then an effect that is
	// absent counts as unknown. Default: 30 s more than Timeout.
	SettlesWithin time.Duration
}

var (
	// ErrRejected is the error of an effect that its provider has refused for good, in this run or in
	// an earlier one. A handler that returns it gives the message up.
	ErrRejected = errors.New("was rejected")
	// ErrLeaseLost is the error of an effect when another process may have taken over.
	ErrLeaseLost = errors.New("the lease is lost; another process may have taken over")
)

// callError is a call that certainly had no effect: it was rejected, or never sent.
type callError struct {
	error
	isRejected bool
}

// Rejected is an error of a call: the provider has said no, and the effect will never happen.
func Rejected(reason string) error { return callError{errors.New(reason), true} }

// NotSent is an error of a call that is known to have had no effect, such as a connection that was
// refused.
func NotSent(err error) error { return callError{err, false} }

// Do has the effect, unless it happened before, and returns its result as it is remembered, as JSON.
// Return its error from the handler; only [ErrRejected] is often worth a look.
func (e Effect[T]) Do(ctx context.Context, lease *Lease) (result T, err error) {
	does := effect{lease, e.Step, cmp.Or(e.Timeout, 30*time.Second), e.SettlesWithin, nil, nil, &state{}}
	does.settles = cmp.Or(does.settles, does.timeout+30*time.Second)
	if e.Call == nil || (e.Reconcile != nil) == e.IsProviderIdempotent {
		return result, does.refused("it needs Call, and either Reconcile or IsProviderIdempotent")
	}
	does.call = func(ctx context.Context, key string) (any, error) { return e.Call(ctx, key) }
	if e.Reconcile != nil {
		does.ask = func(ctx context.Context, key string) (any, Found, error) { return e.Reconcile(ctx, key) }
	}
	text, err := does.do(ctx)
	if err == nil && json.Unmarshal(text, &result) != nil {
		err = does.refused("the remembered result does not decode: has its type changed?")
	}
	return result, err
}

// effect is one whose result has any type.
type effect struct {
	*Lease
	step             string
	timeout, settles time.Duration
	call             func(context.Context, string) (any, error)
	ask              func(context.Context, string) (any, Found, error)
	// end is the state in which this use of the effect leaves it.
	end *state
}

// state is how an effect of this run stands; one that is open may have happened.
type state struct{ isBusy, isOpen, isSettled bool }

func (e effect) refused(reason string) error { return fmt.Errorf("effect %q: %s", e.step, reason) }

func (e effect) unknown(err error) error {
	return fmt.Errorf("the outcome of effect %q is unknown: %w", e.step, plain{err})
}

// settlingError says that an earlier call may still arrive for this time: a wait, and no attempt.
type settlingError struct {
	error
	after time.Duration
}

// plain is an error of a provider's client, which decides nothing about the message.
type plain struct{ error }

// do begins, asks where that is needed, calls, and remembers.
func (e effect) do(ctx context.Context) (json.RawMessage, error) {
	key, err := StepKey(e.Key, e.step)
	if err != nil {
		return nil, e.refused(err.Error())
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	before, err := e.take()
	if err != nil {
		return nil, err
	}
	*e.end = state{isOpen: true} // also when an answer gets lost
	defer func() { e.set(*e.end) }()
	var answer, result, reason, age, isOwn string
	err = e.patiently(ctx, "begin_effect", "answer, coalesce(result::text, ''), coalesce(reason, ''),"+
		" coalesce(extract(epoch FROM age), 0)::text, coalesce(is_own, false)::text", e.arguments(), &answer, &result, &reason, &age, &isOwn)
	isOpen := false
	switch {
	case err != nil:
		return nil, err
	case answer == "lost":
		return nil, e.lose(takenOver)
	case answer == "done":
		*e.end = state{isSettled: true}
		return json.RawMessage(result), nil
	case answer == "rejected":
		*e.end = state{isSettled: true}
		return nil, e.rejected(reason)
	case answer == "open" && (isOwn != "true" || before.isOpen):
		old, _ := strconv.ParseFloat(age, 64)
		known, isKnown, err := e.reconciled(ctx, key, time.Duration(old*float64(time.Second)))
		if err != nil || isKnown {
			return known, err
		}
		isOpen = e.ask == nil
	}
	// A beginning that took long, or a suspended process: another process may have taken over.
	if e.isLost() {
		return nil, ErrLeaseLost
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	value, err := within(ctx, e.timeout, func(ctx context.Context) (any, error) { return e.call(ctx, key) })
	return e.settle(ctx, value, err, isOpen)
}

// reconciled asks the provider about an earlier call. If it is known not to have happened, or calling
// again is as good as asking, it records that the effect is called again.
func (e effect) reconciled(ctx context.Context, key string, age time.Duration) (result json.RawMessage, isKnown bool, err error) {
	if e.ask != nil {
		found := Unknown
		value, err := within(ctx, e.timeout, func(ctx context.Context) (value any, err error) {
			value, found, err = e.ask(ctx, key)
			return value, err
		})
		known, _ := errors.AsType[callError](err)
		switch {
		case known.isRejected, err == nil && found == Happened:
			result, err = e.settle(ctx, value, err, true)
			return result, true, err
		case err == nil && found == Absent && age < e.settles:
			err = fmt.Errorf("the provider knows nothing of it, but a call settles within %s", e.settles)
			return nil, false, settlingError{e.unknown(err), e.settles - age}
		case err == nil && found != Absent:
			err = errors.New("the provider cannot tell yet")
		}
		if err != nil {
			return nil, false, e.unknown(err)
		}
	}
	return nil, false, e.holds(ctx, "begin_effect_again")
}

// settle remembers how a call has ended. isOpen: an earlier one may have had the effect, and that this
// one failed says nothing about it.
func (e effect) settle(ctx context.Context, value any, failure error, isOpen bool) (json.RawMessage, error) {
	known, isKnown := errors.AsType[callError](failure)
	status, result, reason := "done", any(nil), any(nil)
	switch {
	case failure == nil:
		text, err := json.Marshal(value)
		if err != nil || len(text) > replyMax {
			// It has happened, so it stays open.
			return nil, e.refused(fmt.Sprintf("its result has no JSON of up to %d bytes: return a reference, and store the rest in Finish", replyMax))
		}
		result = string(text)
	case known.isRejected:
		status, reason = "rejected", reasonOf(failure)
	case isKnown && !isOpen:
		status = "absent"
	default:
		return nil, e.unknown(failure)
	}
	if err := e.holds(ctx, "end_effect", "status text", status, "result json", result, "reason text", reason); err != nil {
		return nil, err
	}
	*e.end = state{isSettled: status != "absent"}
	switch status {
	case "rejected":
		return nil, e.rejected(reason.(string))
	case "absent":
		return nil, fmt.Errorf("effect %q failed: %w", e.step, plain{failure})
	}
	return json.RawMessage(result.(string)), nil
}

func (e effect) rejected(reason string) error {
	return fmt.Errorf("effect %q %w: %s", e.step, ErrRejected, reason)
}

// holds is held for a function of an effect.
func (e effect) holds(ctx context.Context, function string, more ...any) error {
	isHeld, err := e.held(ctx, function, e.arguments(more...)...)
	if err == nil && !isHeld {
		err = e.lose(takenOver)
	}
	return err
}

func (e effect) arguments(more ...any) arguments {
	return append(arguments{"lease interval", interval(e.in.leased.Lease), "step text", e.step}, more...)
}

// within is a call of the user's for a time. A panic is an error, as of a call whose outcome is unknown.
func within(ctx context.Context, limit time.Duration, call func(context.Context) (any, error)) (value any, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer func() {
		if panicked := recover(); panicked != nil {
			err = asError(panicked, "")
		}
	}()
	return call(ctx)
}

// take takes an effect in hand. A second use in one run would silently get the result of the first.
func (e effect) take() (before state, err error) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if before = e.effects[e.step]; before.isBusy || before.isSettled {
		return before, e.refused("it was done already, or is under way: each effect of a run needs a step of its own")
	}
	e.effects[e.step] = state{isBusy: true, isOpen: true}
	return before, nil
}

func (e effect) set(now state) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.effects[e.step] = now
}

// open are the effects that may have happened.
func (l *Lease) open() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	var names []string
	for step, now := range l.effects {
		if now.isOpen {
			names = append(names, strconv.Quote(step))
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// explained is the reason, and which effects may have happened.
func (l *Lease) explained(reason string) string {
	if open := l.open(); open != "" && !strings.Contains(reason, "effect "+open+" is unknown") {
		reason += "; the outcome of effect " + open + " is unknown"
	}
	return reason
}
