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
)

// Order is how messages that share an ordering key are kept in order. Both handle them one at a
// time, and while one waits for its next attempt, the later ones wait, too. A dead letter stops
// them in strict order only: see BehindDead of [ConsumerOptions].
type Order int

const (
	// PerProcess keeps their order within this process. Others may have other messages of the key.
	PerProcess Order = iota
	// Strict keeps it over all processes: one consumes, and the others stand by.
	Strict
)

// ConsumerOptions are the optional settings of a consumer; zero values mean the defaults.
type ConsumerOptions struct {
	// FilterSubject limits the consumer to some subjects. Default: every subject of the stream.
	FilterSubject string
	// Batch: the most messages, of those that are there, that share a transaction. Default: 1; at most
	// 1000.
	Batch int
	// Concurrency is how many transactions there are at once. Default: 16, or 4 of batches.
	Concurrency int
	// AckWait is the time after which messages of a process that died are delivered again, Grace how
	// long a drain waits for running handlers. Default: 30 s each.
	AckWait, Grace time.Duration
	// Order of messages that share an ordering key. Default: PerProcess.
	Order Order
	// BehindDead: in strict order, how many later messages of a dead letter's ordering key may wait in the
	// database until it is retried or discarded; the next ones stay in the stream. Default: 1000; at most
	// 100000; below 0, all overtake it.
	BehindDead int
	// FromNow and FromTime are where a durable consumer begins that does not exist yet. Default: the
	// stream's first message.
	FromNow  bool
	FromTime time.Time
	// ObjectBytesMax: a larger payload is not fetched from the Object Store, and its message fails.
	// Default: 64 MiB.
	ObjectBytesMax int
}

// flushLimit is how long the end of a consumer may wait for NATS.
const flushLimit = 2 * time.Second

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
	options.BehindDead = min(cmp.Or(options.BehindDead, 1000), 100_000)
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
	return c.run(ctx, &batch{Inbox: inbox, each: handler.each, set: handler})
}

func (c *Consumer) run(ctx context.Context, batch *batch) (err error) {
	defer func() {
		if err != nil {
			slog.Error("the consumer has ended", "consumer", c.durable, "stream", c.stream, "reason", err)
		}
	}()
	wanted, found := int32(1), batch.pool.Config().MaxConns
	if c.options.Order == Strict {
		wanted++ // its session has the right to consume
	}
	if batch.leased != nil {
		wanted++ // a lease is renewed while Finish writes
	}
	if found < wanted {
		return fmt.Errorf("consumer %s needs %d connections at least, and MaxConns of the pool is %d: make it larger", c.durable, wanted, found)
	}
	source, err := c.begin(ctx, batch.Inbox)
	if err != nil || source == nil && c.options.Order != Strict || ctx.Err() != nil {
		return err
	}
	slog.Info("the consumer starts", "stream", c.stream, "consumer", c.durable, "scope", batch.scope,
		"filter", cmp.Or(c.options.FilterSubject, ">"), "concurrency", c.options.Concurrency, "batch", c.options.Batch,
		"strict", c.options.Order == Strict)
	// The context of handlers ends only when the grace of a drain is over.
	working, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	ended := make(chan error, 1)
	go func() {
		var err error
		if c.options.Order == Strict {
			err = c.lead(ctx, working, batch)
		} else {
			err = c.pump(batch, source, nil).run(ctx, working)
		}
		if err == nil {
			slog.Info("the consumer has finished", "stream", c.stream, "consumer", c.durable, "messages", batch.ends.String())
		}
		ended <- err
	}()
	// Else the last acknowledgements would be lost with a process that ends now.
	defer c.flush()
	select {
	case err = <-ended:
		return err
	case <-ctx.Done():
	}
	defer time.AfterFunc(c.options.Grace, abandon).Stop()
	select {
	case err = <-ended:
		return err
	case <-time.After(c.options.Grace + stepLimit):
		return fmt.Errorf("consumer %s: handlers go on %s after the end of their context", c.durable, stepLimit)
	}
}

// flush waits until the server has all that this connection sent.
func (c *Consumer) flush() {
	if err := c.jetstream.Conn().FlushTimeout(flushLimit); err != nil {
		slog.Warn("acknowledgements may be lost, these messages come again and are answered", "consumer", c.durable, "reason", err)
	}
}

// begin registers the scope and finds or creates the consumer, and tries again until both servers
// answer. It returns nil if the context ends before.
func (c *Consumer) begin(ctx context.Context, inbox *Inbox) (jetstream.Consumer, error) {
	for {
		source, err := c.ready(ctx, inbox)
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
			return nil, fmt.Errorf("consumer %s cannot begin: %w", c.durable, c.explained(err, inbox))
		}
		slog.Warn("consumer cannot begin, will retry", "consumer", c.durable, "reason", err)
		sleep(ctx, time.Second)
	}
}

// ready is nil for a consumer in strict order, which only its leader may change.
func (c *Consumer) ready(ctx context.Context, inbox *Inbox) (jetstream.Consumer, error) {
	if c.options.Order != Strict {
		return c.register(ctx, inbox)
	}
	_, err := c.jetstream.Stream(ctx, c.stream)
	return nil, cmp.Or(err, inbox.Register(ctx))
}

// explained names the command that makes the missing object.
func (c *Consumer) explained(err error, inbox *Inbox) error {
	postgres, isPostgres := errors.AsType[*pgconn.PgError](err)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("there is no stream %s: make it with `oncebox relay --stream '%s=SUBJECTS'`: %w", c.stream, c.stream, err)
	case isPostgres && (postgres.Code == "3F000" || postgres.Code == "42883"):
		return fmt.Errorf("the database has no schema %s of this version: make it with `oncebox migrate --database-url ..`: %w",
			inbox.schema, err)
	case isPostgres && postgres.Hint != "":
		return fmt.Errorf("%w: %s", err, postgres.Hint)
	}
	return err
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
		return c.jetstream.CreateConsumer(ctx, c.stream, c.fresh())
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

// fresh is the durable consumer as it is created.
func (c *Consumer) fresh() jetstream.ConsumerConfig {
	config := jetstream.ConsumerConfig{
		Durable: c.durable, AckWait: c.options.AckWait, MaxAckPending: max(1000, 16*c.options.Concurrency*c.options.Batch),
	}
	if c.options.FromNow {
		config.DeliverPolicy = jetstream.DeliverNewPolicy
	} else if !c.options.FromTime.IsZero() {
		config.DeliverPolicy, config.OptStartTime = jetstream.DeliverByStartTimePolicy, &c.options.FromTime
	}
	return c.wanted(config)
}

// wanted changes settings that would lose or withhold messages. With a limit of deliveries,
// JetStream would forget a message that has failed so often, before it is a dead letter.
func (c *Consumer) wanted(config jetstream.ConsumerConfig) jetstream.ConsumerConfig {
	config.AckPolicy, config.MaxDeliver, config.BackOff = jetstream.AckExplicitPolicy, -1, nil
	config.FilterSubject, config.FilterSubjects, config.HeadersOnly = c.options.FilterSubject, nil, false
	return config
}
