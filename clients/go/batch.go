package oncebox

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// After this time no other handler of a batch begins: its locks must not be held for long.
	roundLimit = 500 * time.Millisecond
	// After this number of failures the rest of a batch is run one by one, since each failure runs the
	// others again.
	failuresMax = 3
	changed     = "the handler changed the role or a setting of the session, which others would have met"
)

// SetHandler handles many messages at once: it writes for all of them in the given transaction, and
// returns nil, or for each message in order the reply that a [Handler] returns. If it returns an
// error, the set is halved until the message that fails is alone.
type SetHandler func(ctx context.Context, tx pgx.Tx, messages []Message) (replies []any, err error)

// each is this handler, for messages that are alone.
func (handler SetHandler) each(ctx context.Context, tx pgx.Tx, message Message) (any, error) {
	replies, err := handler(ctx, tx, []Message{message})
	if err == nil && len(replies) > 1 {
		err = fmt.Errorf("the handler answered %d replies for 1 message", len(replies))
	}
	if err != nil || len(replies) == 0 {
		return nil, err
	}
	return replies[0], nil
}

// batch runs handlers for several messages of an inbox in one transaction: their keys are claimed
// together, and end together. A failure rolls all of them back. If the message that has failed is
// known, it is run again by itself, which counts the attempt, and the others together; else each half
// is run again by itself.
type batch struct {
	*Inbox
	each Handler
	// set is nil where each message has a handler of its own.
	set SetHandler
	// ends counts the messages that got each answer, for the log.
	ends tally
}

// tally counts names.
type tally struct {
	mutex  sync.Mutex
	counts map[string]int
}

func (t *tally) add(name string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.counts == nil {
		t.counts = map[string]int{}
	}
	t.counts[name]++
}

func (t *tally) String() string {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(t.counts)) {
		texts = append(texts, fmt.Sprintf("%s %d", name, t.counts[name]))
	}
	return cmp.Or(strings.Join(texts, ", "), "no messages")
}

// result is the answer to a message; an error means the same as for [Inbox.Run].
type result struct {
	Verdict
	err error
}

// failedError says that all are rolled back.
type failedError struct {
	error
	// place is that of the message which has failed, or -1 when it is not known.
	place int
	// isSlow says that each part might take as long again.
	isSlow bool
}

func (f failedError) Unwrap() error { return f.error }

// outcome is how a transaction has ended: the messages with an answer, those to be run by themselves,
// and those it did not come to. Claims that are given back are those of messages which were delivered
// before: one may end its process.
type outcome struct {
	answers                map[int]Verdict
	alone, left, givenBack []int
}

// run handles these messages, and answers each.
func (b *batch) run(ctx context.Context, messages []Message) []result {
	results := make([]result, len(messages))
	identified, places := make([]Message, len(messages)), []int{}
	var alone []int
	for place, message := range messages {
		var err error
		message.Tenant, message.Key = "", ""
		if identified[place], err = b.identify(message); err != nil {
			alone = append(alone, place)
		} else {
			places = append(places, place)
		}
	}
	failures := 0
	for rounds := [][]int{places}; len(rounds) > 0; {
		places, rounds = rounds[0], rounds[1:]
		if len(places) < 2 || failures > failuresMax {
			alone = append(alone, places...)
			continue
		}
		done, err := b.together(ctx, identified, places)
		failed, isFailed := errors.AsType[failedError](err)
		switch half := len(places) / 2; {
		case err != nil && !isFailed:
			for _, place := range places {
				results[place].err = err
			}
		case isFailed && failed.isSlow:
			alone = append(alone, places...)
		case isFailed && failed.place < 0:
			rounds = slices.Concat([][]int{places[:half], places[half:]}, rounds)
		case isFailed:
			failures++
			alone = append(alone, failed.place)
			rest := slices.DeleteFunc(slices.Clone(places), func(place int) bool { return place == failed.place })
			rounds = slices.Concat([][]int{rest}, rounds)
		default:
			for place, answer := range done.answers {
				results[place].Verdict = answer
			}
			alone, rounds = append(alone, done.alone...), append(rounds, done.left)
		}
	}
	for _, place := range alone {
		results[place].Verdict, results[place].err = b.Run(ctx, b.each, messages[place])
	}
	return results
}

// together handles the messages at these places in one transaction. An error that is no failedError
// means that nothing was attempted.
func (b *batch) together(ctx context.Context, messages []Message, places []int) (done outcome, err error) {
	current := &run{}
	err = current.within(ctx, b.pool, func(step context.Context, connection *pgxpool.Conn) error {
		tx, claimed, err := b.claimAll(step, connection, current, messages, places)
		if done = claimed; err != nil {
			return failedError{err, -1, false}
		}
		return b.end(ctx, tx, current, messages, places, &done)
	})
	if current.isClosed && !current.began.IsZero() {
		b.endHolder(ctx, current)
	}
	return done, err
}

// end runs the handlers of the messages whose keys are claimed, and commits.
func (b *batch) end(ctx context.Context, tx pgx.Tx, current *run, messages []Message, places []int, done *outcome) error {
	fresh := slices.DeleteFunc(slices.Clone(places), func(place int) bool {
		_, isAnswered := done.answers[place]
		return isAnswered || slices.Contains(done.alone, place)
	})
	if len(fresh) == 0 {
		return nil
	}
	current.Message, current.began = messages[fresh[0]], time.Now()
	handle := b.handleEach
	if b.set != nil {
		handle = b.handleSet
	}
	endings, err := handle(ctx, tx, messages, fresh)
	if err != nil {
		return err
	}
	for _, place := range fresh {
		if _, hasEnded := endings[place]; !hasEnded {
			done.left = append(done.left, place)
		}
	}
	if err := b.settle(ctx, tx, current, messages, endings, slices.Concat(done.left, done.givenBack)); err != nil {
		return failedError{err, -1, false}
	}
	for place, end := range endings {
		done.answers[place] = end.verdict()
	}
	return nil
}

// claimAll begins the transaction and claims the keys, in one round trip. Its guard fails every COMMIT
// before that of settle.
func (b *batch) claimAll(ctx context.Context, connection *pgxpool.Conn, current *run, messages []Message, places []int) (pgx.Tx, outcome, error) {
	done := outcome{answers: map[int]Verdict{}}
	var tenants, keys, fingerprints, ids []string
	for _, place := range places {
		message := messages[place]
		fingerprint := sha256.Sum256(append([]byte("oncebox payload 1\x00"), message.Payload...))
		tenants, keys = append(tenants, message.Tenant), append(keys, message.Key)
		fingerprints, ids = append(fingerprints, bytea(fingerprint[:])), append(ids, message.Headers["oncebox-id"])
	}
	limit := b.options.HandlerTimeout + roundLimit + 5*time.Second
	queries := &pgx.Batch{}
	queries.BeginTx(pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	queries.Queue(b.sql("SELECT place::text, answer, coalesce(outcome::text, ''), CASE WHEN place = 1 THEN "+session+" ELSE '' END"+
		" FROM {schema}.claim_batch($1::text, $2::text[], $3::text[], $4::bytea[],"+
		" ARRAY(SELECT substring(id FROM '^[0-9]{1,18}$')::bigint FROM unnest($5::text[]) WITH ORDINALITY AS i (id, n) ORDER BY n),"+
		" make_interval(secs => $6::float8))"),
		b.scope, array(tenants), array(keys), array(fingerprints), array(ids), seconds(limit))
	results := connection.SendBatch(ctx, queries)
	_, _ = results.Exec() // if BEGIN fails, the claim returns the same error
	rows, err := results.Query()
	for err == nil && rows.Next() {
		var place, name, reply, settings string
		if err = rows.Scan(&place, &name, &reply, &settings); err != nil {
			break
		}
		number, _ := strconv.Atoi(place)
		current.session = cmp.Or(current.session, settings)
		switch at := places[number-1]; {
		case name == "new" && messages[at].Deliveries <= 1:
		case name == "new":
			done.alone, done.givenBack = append(done.alone, at), append(done.givenBack, at)
		case name == "alone":
			done.alone = append(done.alone, at)
		default:
			done.answers[at] = Verdict{Name: name, Reply: json.RawMessage(reply)}
		}
	}
	if err == nil {
		rows.Close()
		err = rows.Err()
	}
	tx := results.Tx()
	return tx, done, cmp.Or(err, results.Close())
}

// handleEach runs one handler after another, as long as the round lasts.
func (b *batch) handleEach(ctx context.Context, tx pgx.Tx, messages []Message, places []int) (map[int]ending, error) {
	endings, began := map[int]ending{}, time.Now()
	for _, place := range places {
		if len(endings) > 0 && time.Since(began) > roundLimit {
			break
		}
		end, err := b.handle(ctx, b.each, tx, messages[place])
		if err = cmp.Or(err, checkOpen(tx)); err != nil {
			return nil, failedError{err, place, false}
		}
		endings[place] = end
	}
	return endings, nil
}

// handleSet runs the handler for all messages.
func (b *batch) handleSet(ctx context.Context, tx pgx.Tx, messages []Message, places []int) (map[int]ending, error) {
	given := make([]Message, len(places))
	for n, place := range places {
		given[n] = messages[place]
	}
	var replies []any
	err := guarded(ctx, b.options.HandlerTimeout, tx, given[0].Key, func(ctx context.Context, tx pgx.Tx) (err error) {
		replies, err = b.tracedSet(b.set)(ctx, tx, given)
		return err
	})
	if err == nil && replies != nil && len(replies) != len(given) {
		err = fmt.Errorf("the handler answered %d of %d messages: return nil, or one reply for each", len(replies), len(given))
	}
	if err = cmp.Or(err, checkOpen(tx)); err != nil {
		return nil, failedError{err, -1, errors.Is(err, context.DeadlineExceeded)}
	}
	endings := map[int]ending{}
	for n, place := range places {
		var reply any
		if replies != nil {
			reply = replies[n]
		}
		if endings[place], err = asEnding(reply); err != nil {
			return nil, failedError{err, place, false}
		}
	}
	return endings, nil
}

// settle stores replies, gives back the keys of the messages that are left, and commits, in one round
// trip.
func (b *batch) settle(ctx context.Context, tx pgx.Tx, current *run, messages []Message, endings map[int]ending, left []int) error {
	ctx, cancel := limited(ctx)
	defer cancel()
	var tenants, keys, replies, statuses, leftTenants, leftKeys []string
	for place, end := range endings {
		if string(end.reply) != "null" || end.status != "completed" {
			tenants, keys = append(tenants, messages[place].Tenant), append(keys, messages[place].Key)
			replies, statuses = append(replies, string(end.reply)), append(statuses, end.status)
		}
	}
	for _, place := range left {
		leftTenants, leftKeys = append(leftTenants, messages[place].Tenant), append(leftKeys, messages[place].Key)
	}
	queries := &pgx.Batch{}
	// The cast fails, and so do all later statements.
	queries.Queue("SELECT CASE WHEN "+session+" = $1::text THEN 'same' ELSE concat('"+changed+"', pg_current_xact_id_if_assigned())::int::text END", current.session)
	queries.Queue(b.sql("SELECT {schema}.settle_batch($1::text, $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])::text"),
		b.scope, array(tenants), array(keys), array(replies), array(statuses), array(leftTenants), array(leftKeys))
	queries.Queue("COMMIT") // not executed behind an error
	err := tx.SendBatch(ctx, queries).Close()
	if err == nil {
		current.sessionThen = current.session
	}
	return err
}

// escaped is a text between quotes in an array.
var escaped = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// array is a text[] as PostgreSQL writes it.
func array(texts []string) string {
	quoted := make([]string, len(texts))
	for n, text := range texts {
		quoted[n] = `"` + escaped.Replace(text) + `"`
	}
	return "{" + strings.Join(quoted, ",") + "}"
}
