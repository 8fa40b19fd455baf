package oncebox

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// renewing renews the lease until it is told to end, which waits for the renewal that is under way. The
// context ends when the lease is lost, or may be.
func (l *Lease) renewing(ctx context.Context) (working context.Context, end func()) {
	working, cancel := context.WithCancelCause(ctx)
	stopped, stop := context.WithCancel(context.WithoutCancel(ctx))
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
		// After a pause of the process it is asked once more: perhaps nobody has taken over.
		limit := max(time.Until(until), third)
		call, values := l.named("lease interval", interval(l.in.leased.Lease)).written("renew_lease")
		var isHeld string
		switch err := l.in.read(ctx, limit, "SELECT "+call+"::text", values, &isHeld); {
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

// isLost says whether the lease is lost, or may be: it has ended, and nobody has renewed it yet.
func (l *Lease) isLost() bool {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.hasLost || time.Now().After(l.until)
}
