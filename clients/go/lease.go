package oncebox

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// renewing renews the lease until it is told to end, or for as long as handler and Finish may take: one
// that hangs loses it. The context ends when the lease is lost.
func (l *Lease) renewing(ctx context.Context) (working context.Context, end func()) {
	working, cancel := context.WithCancelCause(ctx)
	stopped, stop := context.WithTimeout(context.WithoutCancel(ctx), 2*l.in.options.HandlerTimeout+endLimit)
	var renewal sync.WaitGroup
	renewal.Go(func() {
		if reason := l.renew(stopped); reason != "" {
			cancel(l.lose(reason))
		}
	})
	return working, func() {
		stop()
		renewal.Wait()
		cancel(nil)
	}
}

// renew renews at each third of the lease. It returns why the lease is lost.
func (l *Lease) renew(ctx context.Context) (lost string) {
	third := l.in.leased.Lease / 3
	var failure error
	for pause := 20 * time.Millisecond; ; {
		until := l.ends()
		due := until.Add(-2 * third)
		if failure != nil {
			due = time.Now().Add(min(third, pause))
			pause = min(2*pause, time.Second)
		}
		if due.After(until) {
			due = until
		}
		if !sleep(ctx, time.Until(due)) {
			return ""
		}
		if l.ends().After(until) {
			continue // an effect that began has renewed it
		}
		sent := time.Now()
		// After a pause of the process it is asked once more: perhaps no other process has taken over.
		limit := max(time.Until(until), third)
		call, values := l.named("lease interval", interval(l.in.leased.Lease)).written("renew_lease")
		var isHeld string
		switch err := l.in.readIn(ctx, limit, "SELECT "+call+"::text", values, &isHeld); {
		case err == nil && isHeld != "true":
			return takenOver
		case err == nil:
			l.renewed(sent)
			failure, pause = nil, 20*time.Millisecond
		default:
			failure = err
		}
		if time.Now().After(l.ends()) {
			return fmt.Sprint("it could not be renewed in time: ", failure)
		}
	}
}

func (l *Lease) ends() time.Time {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.until
}

// renewed says that the database gave the lease to a statement that was sent then.
func (l *Lease) renewed(sent time.Time) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if until := sent.Add(l.in.leased.Lease); until.After(l.until) {
		l.until = until
	}
}

const takenOver = "the key has another owner, or has ended"

// lose says that nothing more may be called or written.
func (l *Lease) lose(reason string) error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if !l.hasLost {
		slog.Warn("the lease is lost: nothing more is called or written", "scope", l.in.scope, "key", l.Key, "reason", reason)
	}
	l.hasLost = true
	return ErrLeaseLost
}

// isLost says whether the lease is lost, or may be: it has ended, and was not renewed yet.
func (l *Lease) isLost() bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.hasLost || time.Now().After(l.until)
}

// held calls a function that answers whether the lease is held.
func (l *Lease) held(ctx context.Context, function string, more ...any) (bool, error) {
	var isHeld string
	err := l.patiently(ctx, function, "f::text", more, &isHeld)
	return isHeld == "true", err
}

// patiently repeats a call while PostgreSQL is away and the lease lasts.
func (l *Lease) patiently(ctx context.Context, function, columns string, more arguments, answers ...any) error {
	call, values := l.named(more...).written(function)
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		sent := time.Now()
		err := l.in.read(ctx, l.in.leased.Lease, "SELECT "+columns+" FROM "+call+" AS f", values, answers...)
		if err == nil {
			l.renewed(sent)
			return nil
		}
		if !isConnectionLost(err) && !isConflict(err) {
			return fmt.Errorf("%s: %w", function, plain{err})
		}
		if l.isLost() || !sleep(ctx, pause) {
			return awayError{fmt.Errorf("%s: %w", function, err)}
		}
	}
}
