package oncebox

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"
)

// Strict order after a dead letter: later messages of its ordering key wait in the database, and
// follow it. PostgreSQL decides which ones wait. A process only remembers whether any line of its
// scope may be stopped, and asks nothing otherwise: inbox/src/inbox/lines.rs says why it never
// misses one.

// How often stopped lines are looked at.
const lookEvery = time.Second

// inLine is the place of a message in a line, and since when it is there.
type inLine struct{ id, since string }

// lines are the stopped lines of an inbox.
type lines struct {
	*Inbox
	// behindMax is how many messages of each line may wait; nil when all overtake.
	behindMax any
	// seen is how many dead letters were seen, free how many when no line was stopped.
	seen, free atomic.Int64
	isFull     atomic.Bool
	// moved says that a message of a line has ended.
	moved chan struct{}
}

func newLines(inbox *Inbox, behindMax int) *lines {
	l := &lines{Inbox: inbox, moved: make(chan struct{}, 1)}
	if behindMax > 0 {
		l.behindMax = strconv.Itoa(behindMax)
	}
	return l
}

// areStopped says whether a line may be stopped.
func (l *lines) areStopped() bool { return l.seen.Load() > l.free.Load() }

// follow is called when the place in the stream is known: each message that died before is known to the
// database then.
func (l *lines) follow(ctx context.Context) error {
	answer, err := l.call(ctx, "follow_lines", arguments{"scope text", l.scope, "behind_max integer", l.behindMax})
	if answer == "true" {
		l.seen.Add(1)
	}
	return err
}

// wait has a message wait until the dead letter of its ordering key is retried or discarded. Its
// answer has no name when the message is to be claimed.
func (l *lines) wait(ctx context.Context, line string, message Message) (Verdict, error) {
	if l.behindMax == nil || line == "" || !l.areStopped() {
		return Verdict{}, nil
	}
	identified, err := l.identify(message)
	if err != nil {
		return Verdict{}, nil // it becomes a dead letter
	}
	answer, err := l.call(ctx, "wait_in_line", append(l.named(identified, "payload bytea", bytea(message.Payload),
		"subject text", message.Subject, "headers jsonb", storedHeaders(message)), message.Origin.stored()...))
	switch {
	case err != nil:
		return Verdict{}, fmt.Errorf("wait behind a dead letter: %w", err)
	case answer == "free":
		return Verdict{}, nil
	case answer == "behind":
		return Verdict{Name: "in_line"}, nil
	}
	if !l.isFull.Swap(true) {
		slog.Warn("as many messages as may wait behind a dead letter of this ordering key: the next ones wait in the stream, and hold up"+
			" the consumer when it holds no others: retry or discard the dead letter (logged once)", "scope", l.scope, "ordering_key", line)
	}
	return Verdict{Name: "in_flight", After: l.options.BackoffMax}, nil
}

// next is the message above this id that is to run from a line; nil when there is none.
func (l *lines) next(ctx context.Context, stream, after string) (*held, error) {
	seen := l.seen.Load()
	var count, id, since, subject, headers, payload, sequence, stored string
	err := l.read(ctx, answerWithin, `SELECT count(*)::text, coalesce(min(id)::text, ''), coalesce(min(since)::text, ''), coalesce(min(subject), ''),
		coalesce(min(headers::text), ''), coalesce(min(encode(payload, 'hex')), ''), coalesce(min(stream_sequence)::text, ''),
		coalesce(((extract(epoch FROM min(stored_at)) * 1000000)::bigint)::text, '')
		FROM {schema}.next_in_line($1::text, $2::text, $3::text::bigint)`,
		[]any{l.scope, stream, after}, &count, &id, &since, &subject, &headers, &payload, &sequence, &stored)
	if err != nil || id == "" {
		if err == nil && count == "0" {
			l.isFull.Store(false)
			for free := l.free.Load(); free < seen && !l.free.CompareAndSwap(free, seen); free = l.free.Load() {
			}
		}
		return nil, err
	}
	var given map[string]any
	if err := json.Unmarshal([]byte(headers), &given); err != nil {
		return nil, fmt.Errorf("the headers of message %s of a stopped line: %w", id, err)
	}
	sent := make(map[string][]string, len(given))
	for name, values := range given {
		switch values := values.(type) {
		case []any:
			for _, value := range values {
				sent[name] = append(sent[name], fmt.Sprint(value))
			}
		default:
			sent[name] = []string{fmt.Sprint(values)}
		}
	}
	body, _ := hex.DecodeString(payload) // it is PostgreSQL's
	number, _ := strconv.ParseUint(sequence, 10, 64)
	microseconds, _ := strconv.ParseInt(stored, 10, 64)
	// It counts as delivered before: a run that ends its process is known then. It has no place among
	// those that the stream delivers, which wait for it in the database.
	message := Message{
		Subject: subject, Payload: body, Headers: collected(sent), Deliveries: 2, sent: sent,
		Origin: &Origin{stream, number, time.UnixMicro(microseconds).UTC()},
	}
	place, _ := strconv.ParseInt(id, 10, 64)
	return &held{received: message, id: heldID{0, place}, since: time.Now(), inLine: &inLine{id, since}}, nil
}

// end takes a message out of its line that has ended.
func (l *lines) end(ctx context.Context, place *inLine) error {
	_, err := l.call(ctx, "end_in_line", arguments{"scope text", l.scope, "id bigint", place.id, "since bigint", place.since})
	return err
}

// move has stopped lines looked at now.
func (l *lines) move() {
	select {
	case l.moved <- struct{}{}:
	default:
	}
}

// run puts the messages of stopped lines into the queue whose turn has come, of each line one, until the
// context ends.
func (l *lines) run(ctx context.Context, queue *queue, stream string, most int) {
	for ctx.Err() == nil {
		room := most - queue.inLines()
		for after := "0"; l.areStopped() && room > 0; {
			message, err := l.next(ctx, stream, after)
			if err != nil {
				slog.Info("stopped lines are looked at again soon", "scope", l.scope, "reason", err)
			}
			if message == nil {
				break
			}
			after = message.inLine.id
			if queue.add(message) {
				room--
			}
		}
		select {
		case <-l.moved:
		case <-time.After(lookEvery):
		case <-ctx.Done():
		}
	}
}
