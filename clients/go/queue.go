package oncebox

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// A process holds messages of this number of bytes at most, and one more pull.
const heldBytesMax = 64 << 20

// held is a message that the consumer holds: JetStream hears that it is worked on.
type held struct {
	// Msg is nil for a message of a stopped line, which the database has.
	jetstream.Msg
	inLine   *inLine
	received Message
	// line is the ordering key, or empty.
	line string
	id   heldID
	// since is when it came, due when it runs again.
	since, due time.Time
}

// heldID tells stored messages apart. A stream that is made again counts from 1 again.
type heldID struct {
	sequence uint64
	storedAt int64
}

// queue has all held messages. Of an ordering key the first one is ready, runs, or waits for its
// next attempt, and the later ones wait for it, in the order of the stream.
type queue struct {
	mutex sync.Mutex
	most  int
	bytes int
	all   map[heldID]*held
	lines map[string][]*held
	// ready has room for all, so that putting a message there never blocks.
	ready chan *held
	// freed wakes the pull when there is room again.
	freed chan struct{}
}

func newQueue(most int) *queue {
	return &queue{
		most: most, all: map[heldID]*held{}, lines: map[string][]*held{},
		ready: make(chan *held, 2*most), freed: make(chan struct{}, 1),
	}
}

// inLines is how many messages of stopped lines are held.
func (q *queue) inLines() (count int) {
	for _, message := range q.messages() {
		if message.Msg == nil {
			count++
		}
	}
	return count
}

// room is how many messages may be pulled.
func (q *queue) room() int {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	if q.bytes > heldBytesMax/2 {
		return 0
	}
	return q.most - len(q.all)
}

// add takes a message, unless it is held already: then the copy is forgotten, for an acknowledgement
// of one delivery counts for all.
func (q *queue) add(message *held) (isNew bool) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	if _, isHeld := q.all[message.id]; isHeld {
		return false
	}
	q.all[message.id] = message
	q.bytes += len(message.received.Payload)
	if message.line != "" {
		q.lines[message.line] = append(q.lines[message.line], message)
		if len(q.lines[message.line]) > 1 {
			return true
		}
	}
	q.ready <- message
	return true
}

// has says whether the message is held.
func (q *queue) has(id heldID) bool {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	_, isHeld := q.all[id]
	return isHeld
}

// take waits for a message that may run, and takes more of those that are there. It returns none once
// the context has ended.
func (q *queue) take(ctx context.Context, most int) (messages []*held) {
	select {
	case <-ctx.Done():
		return nil
	case message := <-q.ready:
		messages = append(messages, message)
	}
	for len(messages) < most {
		select {
		case message := <-q.ready:
			messages = append(messages, message)
			continue
		default:
		}
		break
	}
	if ctx.Err() != nil {
		return nil // all that is left is given back
	}
	return messages
}

// again has the message run again after that time; until then it keeps its place.
func (q *queue) again(message *held, after time.Duration) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	// Runs that failed while the message is held count like deliveries.
	message.received.Deliveries++
	message.due = time.Now().Add(after)
	time.AfterFunc(after, func() { q.ready <- message })
}

// end forgets the message, and lets the next one of its ordering key run.
func (q *queue) end(message *held) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	delete(q.all, message.id)
	q.bytes -= len(message.received.Payload)
	if message.line != "" {
		rest := q.lines[message.line][1:]
		q.lines[message.line] = rest
		if len(rest) == 0 {
			delete(q.lines, message.line)
		} else {
			q.ready <- rest[0]
		}
	}
	select {
	case q.freed <- struct{}{}:
	default:
	}
}

// messages are all that are held.
func (q *queue) messages() []*held {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	messages := make([]*held, 0, len(q.all))
	for _, message := range q.all {
		messages = append(messages, message)
	}
	return messages
}

// delay is the time until the message, or the one that it waits for, runs again.
func (q *queue) delay(message *held) time.Duration {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	if line := q.lines[message.line]; len(line) > 0 {
		message = line[0]
	}
	return max(time.Until(message.due), 0)
}
