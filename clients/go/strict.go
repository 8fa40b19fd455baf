package oncebox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Strict order: one process consumes, and continues from where everything before is settled. The crate
// oncebox-inbox says why that suffices, and where two processes meet, why they cannot change the order
// (strict_order.rs).

const (
	// How often a process asks for the right to consume, and how often its leader shows that it lives.
	askEvery, showEvery = 500 * time.Millisecond, time.Second
	// After this time without an answer the right counts as lost.
	answerWithin = 3 * time.Second
)

// place is where a strictly ordered consumer goes on.
type place struct {
	// delivered is the consumer's sequence of the last delivery.
	delivered uint64
	// first is how often the next message was delivered by earlier consumers; all up to before were once.
	first  int64
	before uint64
}

// arrived fails if a delivery before this one is missing, and tells how often earlier consumers have
// delivered the message.
func (p *place) arrived(metadata *jetstream.MsgMetadata) (earlier int64, err error) {
	if metadata.Sequence.Consumer != p.delivered+1 {
		return 0, fmt.Errorf("deliveries %d to %d went elsewhere", p.delivered+1, metadata.Sequence.Consumer-1)
	}
	p.delivered++
	earlier, p.first = p.first, 0
	if metadata.Sequence.Stream <= p.before {
		earlier = max(earlier, 1)
	}
	return earlier, nil
}

// lead consumes as the only process each time that it has the right to, until the context ends.
func (c *Consumer) lead(ctx, working context.Context, batch *batch) error {
	for ctx.Err() == nil {
		err := c.leadOnce(ctx, working, batch)
		if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, errInterest) {
			return err
		}
		if err != nil && ctx.Err() == nil {
			slog.Warn("the right to consume was not had, or is lost: will ask again", "consumer", c.durable, "reason", err)
			sleep(ctx, showEvery)
		}
	}
	return nil
}

func (c *Consumer) leadOnce(ctx, working context.Context, batch *batch) error {
	waiting, cancel := context.WithTimeout(ctx, stepLimit)
	connection, err := connect(waiting, batch.pool)
	cancel()
	if err != nil {
		return err
	}
	defer func() {
		// The right ends with the session.
		_ = connection.Hijack().PgConn().Close(canceled())
	}()
	if err := c.ask(ctx, connection, batch.Inbox); err != nil {
		return err
	}
	slog.Info("this process consumes, in strict order", "consumer", c.durable, "stream", c.stream)
	ctx, lose := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer lose(nil)
	watch.Go(func() {
		for sleep(ctx, showEvery) {
			if err := answered(ctx, connection, "SELECT true"); err != nil {
				lose(fmt.Errorf("the right to consume is lost: %w", err))
			}
		}
	})
	for hasTakenOver := true; ctx.Err() == nil; {
		source, place, err := c.continued(ctx, batch.Inbox, hasTakenOver)
		if err == nil {
			hasTakenOver = false
			err = c.pump(batch, source, place).run(ctx, working)
		}
		if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, errInterest) {
			return err
		}
		if err != nil && ctx.Err() == nil {
			slog.Warn("consumer continues in order", "consumer", c.durable, "reason", err)
			sleep(ctx, 200*time.Millisecond)
		}
	}
	return context.Cause(ctx)
}

// ask waits until this process may consume.
func (c *Consumer) ask(ctx context.Context, connection *pgxpool.Conn, inbox *Inbox) error {
	limited, cancel := context.WithTimeout(ctx, answerWithin)
	_, err := connection.Exec(limited, "BEGIN ISOLATION LEVEL READ COMMITTED")
	cancel()
	for err == nil {
		err = answered(ctx, connection, inbox.sql("SELECT {schema}.lead_consumer($1::text, $2::text, $3::text)"), inbox.scope, c.stream, c.durable)
		if !errors.Is(err, errNo) {
			return err
		}
		err = nil
		if !sleep(ctx, askEvery) {
			return ctx.Err()
		}
	}
	return err
}

var (
	errNo       = errors.New("no")
	errInterest = errors.New("a stream with interest retention deletes messages when a consumer is made again; " +
		"strict order needs limits or work-queue retention")
)

// answered is nil when PostgreSQL says true within the time.
func answered(ctx context.Context, connection *pgxpool.Conn, sql string, parameters ...any) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
	defer cancel()
	var text string // whatever the pool's types are
	rows, err := connection.Query(ctx, "SELECT ("+sql+")::text", parameters...)
	if err == nil {
		text, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[string])
	}
	if err == nil && text != "true" {
		err = errNo
	}
	return err
}

// continued is the consumer that delivers all that is not settled, in the order of the stream.
// Unless nothing is under way, it is deleted and made again after the last message before which all
// are settled. A process that dies meanwhile leaves that place in the table consumer_position.
func (c *Consumer) continued(ctx context.Context, inbox *Inbox, hasTakenOver bool) (jetstream.Consumer, *place, error) {
	stream, err := c.jetstream.Stream(ctx, c.stream)
	if err != nil {
		return nil, nil, err
	}
	about := stream.CachedInfo()
	if about.Config.Retention == jetstream.InterestPolicy {
		return nil, nil, fmt.Errorf("stream %s: %w", c.stream, errInterest)
	}
	named := []any{c.stream, c.durable, about.Created.UTC().Format(time.RFC3339Nano)}
	source, err := c.jetstream.Consumer(ctx, c.stream, c.durable)
	isMissing := errors.Is(err, jetstream.ErrConsumerNotFound)
	if err != nil && !isMissing {
		return nil, nil, err
	}
	next, before := uint64(0), about.State.LastSeq
	if isMissing {
		var found string
		err = inbox.ask(ctx, &found, "SELECT coalesce({schema}.consumer_place($1::text, $2::text, $3::text), 0)::text", named...)
		next, _ = strconv.ParseUint(found, 10, 64)
	} else {
		info := source.CachedInfo()
		// A takeover that ended before anything was delivered does not know which messages were delivered
		// before it.
		isUntouched := info.Delivered.Consumer == 0 && info.Config.DeliverPolicy == jetstream.DeliverByStartSequencePolicy
		if !isUntouched && info.NumAckPending == 0 && info.Delivered.Stream <= about.State.LastSeq {
			source, err = c.register(ctx, inbox)
			return source, &place{delivered: info.Delivered.Consumer}, err
		}
		if !isUntouched {
			before = info.Delivered.Stream
		}
		// nats-server 2.9 reports a floor of 0 until the first message after the start is settled. After
		// a loss at the stream's end, new messages get the numbers of the lost ones.
		start := cmp.Or(info.Config.OptStartSeq, 1)
		next = min(max(info.AckFloor.Stream+1, start), about.State.LastSeq+1)
	}
	if err != nil || next == 0 {
		source, err = c.register(ctx, inbox) // none has ever been here
		return source, &place{}, err
	}
	var takeovers string
	err = inbox.ask(ctx, &takeovers, "SELECT {schema}.continue_consumer($1::text, $2::text, $3::text, $4::bigint, $5::boolean)::text",
		append(named, strconv.FormatUint(next, 10), strconv.FormatBool(hasTakenOver))...)
	if err == nil && !isMissing {
		err = c.jetstream.DeleteConsumer(ctx, c.stream, c.durable)
	}
	if err != nil {
		return nil, nil, err
	}
	config := c.fresh()
	config.DeliverPolicy, config.OptStartTime = jetstream.DeliverAllPolicy, nil
	// Of a work queue settled messages are gone, and no other start is allowed.
	if about.Config.Retention != jetstream.WorkQueuePolicy {
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverByStartSequencePolicy, next
	}
	first, _ := strconv.ParseInt(takeovers, 10, 64)
	slog.Info("consumer continued in order", "stream", c.stream, "consumer", c.durable, "next_sequence", next)
	source, err = c.jetstream.CreateConsumer(ctx, c.stream, config)
	return source, &place{first: first, before: before}, err
}

// canceled is a context that has ended: a connection that is closed with it waits for nothing.
func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
