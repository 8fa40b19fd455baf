package oncebox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// How long one pull request waits for messages; a drain may have to wait for it as long.
	pull = time.Second
	// One worker tries so often while PostgreSQL does not answer.
	tryAgain = 500 * time.Millisecond
	// Without a strict order, the longest time that a message is held; then others of its ordering key
	// go on.
	holdMax = time.Hour
)

// pump pulls from a JetStream consumer and has workers handle the messages.
type pump struct {
	*Consumer
	batch  *batch
	source jetstream.Consumer
	queue  *queue
	// place is nil unless the order is strict. Then the pump ends when a delivery is missing.
	place *place
	lines *lines
	// isAway is set while PostgreSQL does not answer. Then the worker that has the turn tries, and no other.
	isAway atomic.Bool
	turn   sync.Mutex
	// expectsCopies says that messages are looked up before they are put into the queue.
	expectsCopies atomic.Bool
}

func (c *Consumer) pump(batch *batch, source jetstream.Consumer, place *place) *pump {
	// Those that are worked on, and as many again, so that no worker waits.
	most := max(16, 2*c.options.Concurrency*max(c.options.Batch, 2))
	behindMax := 0
	if place != nil {
		behindMax = c.options.BehindDead
	}
	return &pump{Consumer: c, batch: batch, source: source, queue: newQueue(most), place: place, lines: newLines(batch.Inbox, behindMax)}
}

// run pulls until the context ends or, with a strict order, until something is lost, and waits for the
// running handlers. Their context is the second one.
func (p *pump) run(ctx, working context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	held, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	for err := p.lines.follow(ctx); err != nil && ctx.Err() == nil; err = p.lines.follow(ctx) {
		if p.place != nil {
			return err
		}
		slog.Warn("consumer cannot begin, will retry", "consumer", p.durable, "reason", err)
		sleep(ctx, time.Second)
	}
	go p.keep(held, p.source.CachedInfo().Config.AckWait/3)
	var workers sync.WaitGroup
	workers.Go(func() { p.lines.run(ctx, p.queue, p.stream, p.options.Concurrency) })
	for range p.options.Concurrency {
		workers.Go(func() {
			for messages := p.queue.take(ctx, p.options.Batch); messages != nil; messages = p.queue.take(ctx, p.options.Batch) {
				if !p.isAway.Load() || p.awaitAnswer(ctx, working, messages) {
					p.handle(working, messages)
				}
			}
		})
	}
	err := p.pull(ctx)
	stop()
	workers.Wait()
	if p.place == nil {
		p.giveBack()
	}
	return err
}

// awaitAnswer handles the messages when it is this worker's turn, if PostgreSQL is still away then. It says
// whether it has answered another worker meanwhile.
func (p *pump) awaitAnswer(ctx, working context.Context, messages []*held) bool {
	p.turn.Lock()
	defer p.turn.Unlock()
	if !p.isAway.Load() {
		return true
	}
	if sleep(ctx, tryAgain) {
		p.handle(working, messages)
	}
	return false
}

// keep says that the held messages are worked on, so that they are not delivered again meanwhile. One
// that is acknowledged says nothing more.
func (p *pump) keep(ctx context.Context, every time.Duration) {
	for sleep(ctx, every) {
		for _, message := range p.queue.messages() {
			if message.Msg != nil {
				_ = message.InProgress()
			}
		}
	}
}

// giveBack has JetStream deliver the messages that did not run, in their order.
func (p *pump) giveBack() {
	messages := p.queue.messages()
	slices.SortFunc(messages, func(a, b *held) int { return cmp.Compare(a.id.sequence, b.id.sequence) })
	for _, message := range messages {
		if message.Msg != nil {
			_ = message.NakWithDelay(p.queue.delay(message))
		}
	}
}

// pull asks for as many messages as there is room for, one request at a time, so that they come in
// their order.
func (p *pump) pull(ctx context.Context) error {
	var pause time.Duration
	for ctx.Err() == nil {
		room := p.queue.room()
		if room < 1 {
			select {
			case <-p.queue.freed:
			case <-time.After(pull):
			}
			continue
		}
		err := p.fetch(ctx, room)
		switch {
		case err == nil:
			pause = 0
		case ctx.Err() != nil:
		case errors.Is(err, nats.ErrConnectionClosed):
			return p.closed(err)
		case p.place != nil:
			return err
		default:
			// The server is away, or the stream has no leader. The client reconnects by itself.
			pause = min(max(2*pause, 200*time.Millisecond), 5*time.Second)
			slog.Warn("consumer cannot be pulled from, will retry", "consumer", p.durable, "after", pause, "reason", err)
			sleep(ctx, pause)
			// It may have been deleted, or its stream replaced; if it is only away, the next pull says so.
			found, _ := p.register(ctx, p.batch.Inbox)
			p.source = cmp.Or(found, p.source)
		}
	}
	return nil
}

func (p *pump) fetch(ctx context.Context, room int) error {
	fetched, err := p.source.Fetch(room, jetstream.FetchMaxWait(pull))
	if err != nil {
		return err
	}
	return cmp.Or(p.takeAll(ctx, fetched.Messages()), fetched.Error())
}

// take reads a message; it is nil when there is nothing to handle.
func (p *pump) take(message jetstream.Msg) (*held, error) {
	metadata, err := message.Metadata()
	if err != nil {
		return nil, err
	}
	received, _ := Received(message) // its error is that of Metadata
	if p.place != nil {
		earlier, err := p.place.arrived(metadata)
		if err != nil {
			return nil, err
		}
		received.Deliveries += earlier
	}
	if _, isMarker := received.Headers["nats-marker-reason"]; isMarker && len(received.Payload) == 0 {
		// The stream has deleted the last message of a subject by its age, and says so. No producer sent
		// this.
		return nil, message.Ack()
	}
	filter := p.options.FilterSubject
	if filter != "" && !matches(strings.Split(filter, "."), strings.Split(message.Subject(), ".")) {
		slog.Error("a message outside of the consumer's filter: another service has changed the durable, and needs a name of its own",
			"consumer", p.durable, "stream", p.stream, "subject", received.Subject, "filter", filter)
		return nil, message.NakWithDelay(time.Second)
	}
	line, _, err := single(received.Headers, "oncebox-ordering-key")
	if err != nil {
		line = "" // several keys are none
	}
	id := heldID{metadata.Sequence.Stream, metadata.Timestamp.UnixNano()}
	return &held{Msg: message, received: received, line: line, id: id, since: time.Now()}, nil
}

func (p *pump) handle(ctx context.Context, messages []*held) {
	var here, elsewhere []*held
	var whole []Message
	for _, message := range messages {
		if message.Msg != nil {
			if waits, err := p.lines.wait(ctx, message.line, message.received); err != nil || waits.Name != "" {
				p.settle(ctx, message, result{waits, err})
				continue
			}
		}
		if isElsewhere(message.received) {
			elsewhere = append(elsewhere, message)
		} else {
			here, whole = append(here, message), append(whole, message.received)
		}
	}
	for n, answer := range p.batch.run(ctx, whole) {
		p.settle(ctx, here[n], answer)
	}
	// Of payloads that are elsewhere one is in memory at a time.
	for _, message := range elsewhere {
		p.settle(ctx, message, p.fetched(ctx, p.batch, message.received))
	}
}

// settle acknowledges the message, or has it run again: one with an ordering key here, so that
// later ones wait, others by JetStream.
func (p *pump) settle(ctx context.Context, message *held, answer result) {
	p.isAway.Store(answer.err != nil)
	if answer.err != nil {
		slog.Error("the message could not be handled now, will retry", "consumer", p.durable, "reason", answer.err)
		answer.Verdict = Verdict{Name: "retry", After: p.batch.options.Backoff}
	}
	if answer.Name == "dead" || answer.Name == "mismatch" {
		p.lines.seen.Add(1)
	}
	p.batch.ends.add(answer.Name)
	if message.Msg == nil {
		p.settleInLine(ctx, message, answer)
		return
	}
	if isAgain := answer.Name == "in_flight" || answer.Name == "retry"; isAgain && message.line != "" {
		if isShort := p.place != nil || time.Since(message.since)+answer.After < holdMax; isShort {
			p.queue.again(message, answer.After)
			return
		}
	}
	p.acknowledge(message, answer.Verdict)
	p.queue.end(message)
}

// acknowledge tells JetStream how a message has ended for now.
func (p *pump) acknowledge(message *held, answer Verdict) {
	var err error
	switch answer.Name {
	case "in_flight", "retry":
		err = message.NakWithDelay(answer.After)
	case "dead", "mismatch":
		err = message.Term()
	default:
		err = message.Ack()
	}
	if err != nil {
		// The message is delivered again, and the copy is answered from the stored outcome.
		slog.Info("an acknowledgement was not sent", "consumer", p.durable, "reason", err)
	}
	if answer.Name != "replayed" || p.batch.leased != nil {
		return
	}
	p.expectsCopies.Store(true)
	if metadata, err := message.Metadata(); err == nil && metadata.NumDelivered > 2 {
		slog.Warn("a message that was handled comes again: may this user publish to $JS.ACK.>?", "consumer", p.durable, "stream",
			metadata.Stream, "sequence", metadata.Sequence.Stream, "deliveries", message.received.Deliveries)
	}
}

// settleInLine has a message of a stopped line run again here, or takes it out of its line.
func (p *pump) settleInLine(ctx context.Context, message *held, answer result) {
	switch answer.Name {
	case "in_flight", "retry":
		p.queue.again(message, answer.After)
		return
	}
	if err := p.lines.end(ctx, message.inLine); err != nil {
		slog.Info("a line is not moved on yet", "consumer", p.durable, "reason", err)
		p.queue.again(message, tryAgain)
		return
	}
	p.queue.end(message)
	p.lines.move()
}

func (c *Consumer) fetched(ctx context.Context, batch *batch, message Message) result {
	complete, err := whole(ctx, c.jetstream, message, c.options.ObjectBytesMax)
	if problem, isWrong := errors.AsType[wrongError](err); isWrong {
		answer, err := batch.incomplete(ctx, message, problem)
		return result{answer, err}
	}
	if err != nil {
		return result{err: err}
	}
	return batch.run(ctx, []Message{complete})[0]
}

// closed is the error for a client that has given up its reconnects, and never connects again.
func (c *Consumer) closed(err error) error {
	return fmt.Errorf("consumer %s: %w for good; connect with nats.MaxReconnects(-1)", c.durable, err)
}

// Received makes the message that an inbox takes.
func Received(message jetstream.Msg) (Message, error) {
	metadata, err := message.Metadata()
	if err != nil {
		return Message{}, err
	}
	return Message{
		Subject: printable(message.Subject()), Payload: message.Data(), Headers: collected(message.Headers()),
		Origin:     &Origin{metadata.Stream, metadata.Sequence.Stream, metadata.Timestamp},
		Deliveries: int64(metadata.NumDelivered), sent: message.Headers(),
	}, nil
}

// sleep says whether the time has passed before the context ended.
func sleep(ctx context.Context, duration time.Duration) bool {
	select {
	case <-time.After(duration):
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
