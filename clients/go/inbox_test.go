package oncebox

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestPausesGrowToTheLongestAndNeverOverflow(t *testing.T) {
	check := func(backoff, longest time.Duration, attempts int64, expected time.Duration) {
		inbox := NewInbox(nil, "s:h", InboxOptions{Backoff: backoff, BackoffMax: longest})
		first, last := inbox.pauses()
		if pause := grown(first, last, attempts); pause < expected/2 || pause > expected {
			t.Errorf("%s after %d attempts of %s to %s", pause, attempts, backoff, longest)
		}
	}
	check(time.Second, 5*time.Minute, 1, time.Second)
	check(time.Second, 5*time.Minute, 4, 8*time.Second)
	check(time.Second, 5*time.Minute, 1000, 5*time.Minute)
	check(10*time.Hour, 24*time.Hour, 2, 20*time.Hour)
	check(10*time.Hour, 24*time.Hour, 19, 24*time.Hour)
	check(time.Hour, time.Minute, 1, time.Minute)
}

func TestATenantIsOneTo255BytesWithoutControlCharacters(t *testing.T) {
	inbox := NewInbox(nil, "s:h", InboxOptions{TenantHeader: "Tenant"})
	check := func(tenant string, isTenant bool) {
		headers := map[string]string{"tenant": tenant, "idempotency-key": "k"}
		if _, err := inbox.identify(Message{Headers: headers}); (err == nil) != isTenant {
			t.Errorf("tenant %q: %v", tenant, err)
		}
	}
	for _, tenant := range []string{"a", "ä b", strings.Repeat("x", 255), "\u00a0"} {
		check(tenant, true)
	}
	for _, tenant := range []string{"", strings.Repeat("x", 256), "a\n", "\x7f", "\u009f", "\xff"} {
		check(tenant, false)
	}
}

// odd is a message whose texts are not UTF-8.
type odd struct{ jetstream.Msg }

func (odd) Subject() string                           { return "orders.caf\xe9" }
func (odd) Data() []byte                              { return []byte("\xff") }
func (odd) Headers() nats.Header                      { return nats.Header{"Na\x00me": {"\xff"}} }
func (odd) Metadata() (*jetstream.MsgMetadata, error) { return &jetstream.MsgMetadata{}, nil }

func TestTextsOfAMessageCanBeStored(t *testing.T) {
	message, err := Received(odd{})
	if err != nil || message.Subject != "orders.caf\ufffd" || message.Headers["na\ufffdme"] != "\ufffd" || message.Payload[0] != 0xff {
		t.Errorf("%+v, %v", message, err)
	}
}
