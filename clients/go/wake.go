package oncebox

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// wakeWithin is how long a hint may take, and waking has a place for each that takes longer.
const wakeWithin = 100 * time.Millisecond

var waking = make(chan struct{}, 16)

// Wake sends a hint to the relays of this database that sleep, since it is suspended when it has no
// client: see docs/operations.md. Call it after COMMIT. An empty schema is "oncebox".
//
// It is never needed: without it a relay that sleeps sends the message when it wakes by itself. It does
// not fail, and waits for a tenth of a second at most: a hint that NATS does not take is dropped.
func Wake(client *nats.Conn, database, schema string) {
	select {
	case waking <- struct{}{}:
	default:
		return // NATS has not taken the ones before
	}
	done := make(chan struct{})
	go func() {
		defer func() {
			<-waking
			close(done)
		}()
		_ = client.Publish(fmt.Sprintf("_ONCEBOX.wake.%s.%s", wakeToken(database), wakeToken(cmp.Or(schema, "oncebox"))), nil)
	}()
	select {
	case <-done:
	case <-time.After(wakeWithin):
	}
}

// wakeToken writes a name as a token of a subject.
func wakeToken(name string) string {
	var token strings.Builder
	for _, character := range []byte(name) {
		isPlain := strings.IndexByte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-", character) != -1
		if isPlain {
			token.WriteByte(character)
		} else {
			fmt.Fprintf(&token, "%%%02X", character)
		}
	}
	return token.String()
}
