package oncebox

import (
	"context"
	"crypto/sha256"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Copies are messages whose keys have ended. While they come they are looked up together, before a worker
// has them. A copy needs no transaction and no handler, only to be acknowledged. A first delivery must not
// pay for that: messages are looked up that were delivered before, and those that follow a copy, as long as
// half of them are copies.

const (
	// How many messages are looked up at once.
	copiesMax = 256
	// After this time they go to the workers, which may have all connections.
	copiesWait = 5 * time.Second
)

// mayBeCopy says whether the message is looked up: not while PostgreSQL is away, which one worker finds out.
func (p *pump) mayBeCopy(message *held) bool {
	return p.batch.leased == nil && !p.isAway.Load() && (p.expectsCopies.Load() || message.received.Deliveries > 1) && !p.queue.has(message.id)
}

// sort acknowledges the copies among these messages, and puts the others into the queue, in their order.
func (p *pump) sort(ctx context.Context, messages []*held) {
	answers, copies := p.lookUp(ctx, messages), 0
	for n, message := range messages {
		if answers[n] == "" {
			p.queue.add(message)
			continue
		}
		copies++
		p.batch.ends.add(answers[n])
		p.acknowledge(message, Verdict{Name: answers[n]})
	}
	p.expectsCopies.Store(2*copies >= len(messages))
}

// lookUp answers each message: "" means that it is to be claimed.
func (p *pump) lookUp(ctx context.Context, messages []*held) []string {
	answers, places := make([]string, len(messages)), []int{}
	var tenants, keys, fingerprints []string
	for place, message := range messages {
		identified, err := p.batch.identify(message.received)
		if err != nil || isElsewhere(message.received) {
			continue // its key, or its payload, is not known
		}
		fingerprint := sha256.Sum256(append([]byte("oncebox payload 1\x00"), message.received.Payload...))
		places, tenants, keys = append(places, place), append(tenants, identified.Tenant), append(keys, identified.Key)
		fingerprints = append(fingerprints, bytea(fingerprint[:]))
	}
	if len(places) == 0 {
		return answers
	}
	statement := "SELECT array_to_string({schema}.look_up_copies($1::text, $2::text[], $3::text[], $4::bytea[]), ',', '')"
	parameters := []any{p.batch.scope, array(tenants), array(keys), array(fingerprints)}
	var found string
	// Where the look fails, the claim tells why.
	if err := p.batch.read(ctx, copiesWait, statement, parameters, &found); err == nil {
		for n, name := range strings.Split(found, ",") {
			answers[places[n]] = name
		}
	}
	return answers
}

// takeAll takes the messages of one pull.
func (p *pump) takeAll(ctx context.Context, messages <-chan jetstream.Msg) error {
	var waiting []*held
	for message := range messages {
		held, err := p.take(message)
		switch {
		case held == nil:
		case len(waiting) > 0 || p.mayBeCopy(held):
			waiting = append(waiting, held)
		default:
			p.queue.add(held)
		}
		if len(waiting) == copiesMax || len(waiting) > 0 && (len(messages) == 0 || err != nil) {
			p.sort(ctx, waiting)
			waiting = nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}
