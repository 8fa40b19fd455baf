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
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// How long one question for a message stays open; also how long a drain may wait for it.
const pull = time.Second

// ConsumerOptions are what may be left out; zero values mean the defaults.
type ConsumerOptions struct {
	// FilterSubject is every subject of the stream.
	FilterSubject string
	// Concurrency is how many messages are handled at once: 16.
	Concurrency int
	// AckWait is after how long the messages of a process that died come again: 30 s.
	AckWait time.Duration
	// Grace is for how long a drain lets handlers end: 30 s.
	Grace time.Duration
}

// Consumer runs an inbox on a durable JetStream consumer, which is created when it is missing.
type Consumer struct {
	jetstream       jetstream.JetStream
	stream, durable string
	options         ConsumerOptions
}

// NewConsumer makes a consumer.
func NewConsumer(js jetstream.JetStream, stream, durable string, options ConsumerOptions) *Consumer {
	options.Concurrency = cmp.Or(options.Concurrency, 16)
	options.AckWait = cmp.Or(options.AckWait, 30*time.Second)
	options.Grace = cmp.Or(options.Grace, 30*time.Second)
	return &Consumer{js, stream, durable, options}
}

// Run consumes until the context ends, and finishes then what is being handled. It returns an error
// only when it cannot go on, or when handlers do not end in time.
func (c *Consumer) Run(ctx context.Context, inbox *Inbox, handler Handler) error {
	source, err := c.begin(ctx, inbox)
	if err != nil || source == nil {
		return err
	}
	pulling, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// Handlers do not notice a drain, until its grace is over.
	working, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	var workers sync.WaitGroup
	for range c.options.Concurrency {
		workers.Go(func() { stop(c.work(pulling, working, source, inbox, handler)) })
	}
	ended := make(chan struct{})
	go func() { workers.Wait(); close(ended) }()
	<-pulling.Done()
	defer time.AfterFunc(c.options.Grace, abandon).Stop()
	select {
	case <-ended:
	case <-time.After(c.options.Grace + stepLimit):
		return fmt.Errorf("consumer %s: handlers go on %s after the end of their context", c.durable, stepLimit)
	}
	if ctx.Err() == nil {
		return context.Cause(pulling)
	}
	return nil
}

// begin registers the scope and finds or makes the consumer, as soon as both servers are there. It
// returns nil when the context ended before.
func (c *Consumer) begin(ctx context.Context, inbox *Inbox) (jetstream.Consumer, error) {
	for ctx.Err() == nil {
		err := inbox.Register(ctx)
		if err == nil {
			var source jetstream.Consumer
			if source, err = c.create(ctx); err == nil {
				return source, nil
			}
		}
		if isRefused(err) {
			return nil, fmt.Errorf("consumer %s cannot begin: %w", c.durable, err)
		}
		slog.Warn("consumer cannot begin, will retry", "consumer", c.durable, "reason", err)
		sleep(ctx, time.Second)
	}
	return nil, nil
}

func (c *Consumer) create(ctx context.Context) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	source, err := c.jetstream.Consumer(ctx, c.stream, c.durable)
	if !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return source, err
	}
	return c.jetstream.CreateConsumer(ctx, c.stream, jetstream.ConsumerConfig{
		Durable:       c.durable,
		FilterSubject: c.options.FilterSubject,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       c.options.AckWait,
		MaxDeliver:    -1,
		MaxAckPending: max(1000, 16*c.options.Concurrency),
	})
}

// work deals with one message at a time: nothing is held that is not being handled.
func (c *Consumer) work(ctx, working context.Context, source jetstream.Consumer, inbox *Inbox, handler Handler) error {
	ackWait := source.CachedInfo().Config.AckWait
	var pause time.Duration
	for ctx.Err() == nil {
		message, err := source.Next(jetstream.FetchMaxWait(pull))
		if err == nil {
			pause = 0
			c.handle(working, inbox, handler, message, ackWait)
			continue
		}
		if errors.Is(err, nats.ErrTimeout) || errors.Is(err, jetstream.ErrNoMessages) {
			continue
		}
		if errors.Is(err, nats.ErrConnectionClosed) {
			return fmt.Errorf("consumer %s: %w for good; connect with nats.MaxReconnects(-1)", c.durable, err)
		}
		// Away, or without a leader; the client connects again by itself.
		pause = min(max(2*pause, 200*time.Millisecond), 5*time.Second)
		slog.Warn("consumer cannot be pulled from, will retry", "consumer", c.durable, "after", pause, "reason", err)
		sleep(ctx, pause)
	}
	return nil
}

func (c *Consumer) handle(ctx context.Context, inbox *Inbox, handler Handler, message jetstream.Msg, ackWait time.Duration) {
	held, release := context.WithCancel(ctx)
	defer release()
	go hold(held, message, ackWait)
	received, err := Received(message)
	var answer Answer
	if err == nil {
		answer, err = inbox.Run(ctx, handler, received)
	}
	if err != nil {
		slog.Error("a message cannot be dealt with now, will retry", "consumer", c.durable, "reason", err)
		answer = Answer{Name: "retry", After: inbox.options.Backoff}
	}
	switch answer.Name {
	case "in_flight", "retry":
		err = message.NakWithDelay(answer.After)
	case "dead", "mismatch":
		err = message.Term()
	default:
		err = message.Ack()
	}
	if err != nil {
		// The message comes again, and its copy is answered from what is stored.
		slog.Info("an acknowledgement was not sent", "consumer", c.durable, "reason", err)
	}
}

// hold says that the message is worked on, so that it is not delivered again meanwhile.
func hold(ctx context.Context, message jetstream.Msg, ackWait time.Duration) {
	beat := time.NewTicker(ackWait / 3)
	defer beat.Stop()
	for {
		select {
		case <-beat.C:
			_ = message.InProgress()
		case <-ctx.Done():
			return
		}
	}
}

// Received is a message as an inbox takes it.
func Received(message jetstream.Msg) (Message, error) {
	metadata, err := message.Metadata()
	if err != nil {
		return Message{}, err
	}
	headers := make(map[string]string, len(message.Headers()))
	for name, values := range message.Headers() {
		if len(values) > 0 {
			headers[printable(strings.ToLower(name))] = printable(values[0])
		}
	}
	return Message{
		Subject:    message.Subject(),
		Payload:    message.Data(),
		Headers:    headers,
		Origin:     &Origin{metadata.Stream, metadata.Sequence.Stream, metadata.Timestamp},
		Deliveries: int64(metadata.NumDelivered),
	}, nil
}

// isRefused is whether PostgreSQL or JetStream said no for good: a wrong argument, a missing grant.
func isRefused(err error) bool {
	var postgres *pgconn.PgError
	var stream *jetstream.APIError
	return errors.As(err, &postgres) && slices.Contains([]string{"3F", "42", "OB"}, postgres.Code[:2]) ||
		errors.As(err, &stream) && stream.Code != 503
}

func sleep(ctx context.Context, duration time.Duration) {
	select {
	case <-time.After(duration):
	case <-ctx.Done():
	}
}
