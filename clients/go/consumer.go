package oncebox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

// How long one pull request waits for a message; a drain may have to wait for it as long.
const pull = time.Second

// ConsumerOptions are the optional settings of a consumer; zero values mean the defaults.
type ConsumerOptions struct {
	// FilterSubject limits the consumer to some subjects. Default: every subject of the stream.
	FilterSubject string
	// Batch: up to so many messages, of those that are there, share a transaction. Default: 1; at most
	// 1000.
	Batch int
	// Concurrency is how many transactions there are at once. Default: 16, or 4 of batches.
	Concurrency int
	// AckWait is the time after which messages of a process that died are delivered again, Grace how
	// long a drain waits for running handlers. Default: 30 s each.
	AckWait, Grace time.Duration
	// ObjectBytesMax: a larger payload is not fetched from the Object Store, and its message fails.
	// Default: 64 MiB.
	ObjectBytesMax int
}

// Consumer runs an inbox on a durable JetStream consumer, which is created when it is missing.
type Consumer struct {
	jetstream       jetstream.JetStream
	stream, durable string
	options         ConsumerOptions
}

// NewConsumer makes a consumer.
func NewConsumer(js jetstream.JetStream, stream, durable string, options ConsumerOptions) *Consumer {
	options.Batch = min(max(options.Batch, 1), 1000)
	if options.Batch > 1 {
		options.Concurrency = cmp.Or(options.Concurrency, 4)
	}
	options.Concurrency = cmp.Or(options.Concurrency, 16)
	options.AckWait = cmp.Or(options.AckWait, 30*time.Second)
	options.Grace = cmp.Or(options.Grace, 30*time.Second)
	options.ObjectBytesMax = cmp.Or(options.ObjectBytesMax, 64<<20)
	return &Consumer{js, stream, durable, options}
}

// Run consumes until the context ends, and then waits for the running handlers. It returns an error
// only when it cannot go on, or when handlers do not end in time.
func (c *Consumer) Run(ctx context.Context, inbox *Inbox, handler Handler) error {
	return c.run(ctx, &batch{Inbox: inbox, each: handler})
}

// RunSet is Run with a handler for all messages of a batch at once: see Batch of the options.
func (c *Consumer) RunSet(ctx context.Context, inbox *Inbox, handler SetHandler) error {
	return c.run(ctx, &batch{inbox, handler.each, handler})
}

func (c *Consumer) run(ctx context.Context, batch *batch) error {
	source, err := c.begin(ctx, batch.Inbox)
	if err != nil || source == nil {
		return err
	}
	// The context of handlers ends only when the grace of a drain is over.
	working, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	workers, pulling := errgroup.WithContext(ctx)
	for range c.options.Concurrency {
		workers.Go(func() error { return c.work(pulling, working, source, batch) })
	}
	ended := make(chan error, 1)
	go func() { ended <- workers.Wait() }()
	<-pulling.Done()
	defer time.AfterFunc(c.options.Grace, abandon).Stop()
	select {
	case err = <-ended:
		return err
	case <-time.After(c.options.Grace + stepLimit):
		return fmt.Errorf("consumer %s: handlers go on %s after the end of their context", c.durable, stepLimit)
	}
}

// begin registers the scope and finds or creates the consumer, and tries again until both servers
// answer. It returns nil if the context ends before.
func (c *Consumer) begin(ctx context.Context, inbox *Inbox) (jetstream.Consumer, error) {
	for {
		source, err := c.register(ctx, inbox)
		if err == nil || ctx.Err() != nil {
			return source, nil
		}
		if errors.Is(err, nats.ErrConnectionClosed) {
			return nil, c.closed(err)
		}
		postgres, isPostgres := errors.AsType[*pgconn.PgError](err)
		stream, isStream := errors.AsType[*jetstream.APIError](err)
		// A wrong argument or a missing grant does not go away.
		isPush := errors.Is(err, jetstream.ErrNotPullConsumer)
		if isPush || isPostgres && strings.Contains("3F 42 OB", postgres.Code[:2]) || isStream && stream.Code != 503 {
			return nil, fmt.Errorf("consumer %s cannot begin: %w", c.durable, err)
		}
		slog.Warn("consumer cannot begin, will retry", "consumer", c.durable, "reason", err)
		sleep(ctx, time.Second)
	}
}

// register waits for PostgreSQL as long as an inbox does, and for JetStream as long as its client.
func (c *Consumer) register(ctx context.Context, inbox *Inbox) (jetstream.Consumer, error) {
	if err := inbox.Register(ctx); err != nil {
		return nil, err
	}
	source, err := c.jetstream.Consumer(ctx, c.stream, c.durable)
	if errors.Is(err, jetstream.ErrNotPullConsumer) {
		return nil, fmt.Errorf("consumer %s of stream %s pushes; delete it, or choose another name: %w", c.durable, c.stream, err)
	}
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		fresh := jetstream.ConsumerConfig{
			Durable: c.durable, AckWait: c.options.AckWait, MaxAckPending: max(1000, 16*c.options.Concurrency*c.options.Batch),
		}
		return c.jetstream.CreateConsumer(ctx, c.stream, c.wanted(fresh))
	}
	if err != nil {
		return nil, err
	}
	found := source.CachedInfo().Config
	found.MaxDeliver = cmp.Or(found.MaxDeliver, -1)
	if wanted := c.wanted(found); !reflect.DeepEqual(found, wanted) {
		return c.jetstream.UpdateConsumer(ctx, c.stream, wanted)
	}
	return source, nil
}

// wanted changes what would lose or withhold messages. With a limit of deliveries, JetStream would
// forget a message that has failed so often, before it is a dead letter.
func (c *Consumer) wanted(config jetstream.ConsumerConfig) jetstream.ConsumerConfig {
	config.AckPolicy, config.MaxDeliver, config.BackOff = jetstream.AckExplicitPolicy, -1, nil
	config.FilterSubject, config.FilterSubjects, config.HeadersOnly = c.options.FilterSubject, nil, false
	return config
}

// work handles a batch at a time, so it holds no message that waits for a batch before.
func (c *Consumer) work(ctx, working context.Context, source jetstream.Consumer, batch *batch) error {
	var pause time.Duration
	for ctx.Err() == nil {
		messages, err := c.pulled(source)
		switch {
		case err == nil:
			pause = 0
			c.handle(working, batch, messages, source.CachedInfo().Config.AckWait)
		case ctx.Err() != nil, errors.Is(err, nats.ErrTimeout), errors.Is(err, jetstream.ErrNoMessages):
		case errors.Is(err, nats.ErrConnectionClosed):
			return c.closed(err)
		default:
			// The server is away, or the stream has no leader. The client reconnects by itself.
			pause = min(max(2*pause, 200*time.Millisecond), 5*time.Second)
			slog.Warn("consumer cannot be pulled from, will retry", "consumer", c.durable, "after", pause, "reason", err)
			sleep(ctx, pause)
			// It may have been deleted, or its stream replaced; if it is only away, the next pull says so.
			found, _ := c.register(ctx, batch.Inbox)
			source = cmp.Or(found, source)
		}
	}
	return nil
}

// pulled waits for a message, and takes more of those that are there.
func (c *Consumer) pulled(source jetstream.Consumer) ([]jetstream.Msg, error) {
	message, err := source.Next(jetstream.FetchMaxWait(pull))
	if err != nil {
		return nil, err
	}
	messages := []jetstream.Msg{message}
	metadata, err := message.Metadata()
	if err != nil {
		return messages, nil // handle says so
	}
	if more := min(c.options.Batch-1, int(min(metadata.NumPending, 1000))); more > 0 {
		// An error comes again with the next pull.
		if fetched, err := source.FetchNoWait(more); err == nil {
			for message := range fetched.Messages() {
				messages = append(messages, message)
			}
		}
	}
	return messages, nil
}

// closed is the error for a client that has given up its reconnects, and never connects again.
func (c *Consumer) closed(err error) error {
	return fmt.Errorf("consumer %s: %w for good; connect with nats.MaxReconnects(-1)", c.durable, err)
}

func (c *Consumer) handle(ctx context.Context, batch *batch, messages []jetstream.Msg, ackWait time.Duration) {
	held, release := context.WithCancel(ctx)
	defer release()
	// Says that the messages are worked on, so that they are not delivered again meanwhile. One that is
	// acknowledged says nothing more.
	go func() {
		for sleep(held, ackWait/3) {
			for _, message := range messages {
				_ = message.InProgress()
			}
		}
	}()
	var here, elsewhere []jetstream.Msg
	var whole, large []Message
	for _, message := range messages {
		received, err := Received(message)
		switch {
		case err != nil:
			c.acknowledge(batch.Inbox, message, received, result{err: err})
		case isElsewhere(received):
			elsewhere, large = append(elsewhere, message), append(large, received)
		default:
			here, whole = append(here, message), append(whole, received)
		}
	}
	for n, answer := range batch.run(ctx, whole) {
		c.acknowledge(batch.Inbox, here[n], whole[n], answer)
	}
	// Of payloads that are elsewhere one is in memory at a time.
	for n, message := range large {
		c.acknowledge(batch.Inbox, elsewhere[n], message, c.fetched(ctx, batch, message))
	}
}

func (c *Consumer) acknowledge(inbox *Inbox, message jetstream.Msg, received Message, answer result) {
	if answer.err != nil {
		slog.Error("the message could not be handled now, will retry", "consumer", c.durable, "reason", answer.err)
		answer.Verdict = Verdict{Name: "retry", After: inbox.options.Backoff}
	}
	isKnown := answer.Name == "replayed" || answer.Name == "rejected"
	if isKnown && received.Deliveries > 2 {
		slog.Warn("a message that was handled comes again: may this user publish to $JS.ACK.>?", "consumer", c.durable,
			"stream", received.Origin.Stream, "sequence", received.Origin.Sequence, "deliveries", received.Deliveries)
	}
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
		slog.Info("an acknowledgement was not sent", "consumer", c.durable, "reason", err)
	}
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

// Received makes the message that an inbox takes.
func Received(message jetstream.Msg) (Message, error) {
	metadata, err := message.Metadata()
	if err != nil {
		return Message{}, err
	}
	return Message{
		Subject: printable(message.Subject()), Payload: message.Data(), Headers: collected(message.Headers()),
		Origin:     &Origin{metadata.Stream, metadata.Sequence.Stream, metadata.Timestamp},
		Deliveries: int64(metadata.NumDelivered),
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
