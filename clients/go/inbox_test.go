package oncebox

import (
	"strings"
	"testing"
	"time"
)

func TestPausesGrowToTheLongestAndNeverOverflow(t *testing.T) {
	check := func(backoff, longest time.Duration, attempts int64, expected time.Duration) {
		inbox := NewInbox(nil, "s:h", InboxOptions{Backoff: backoff, BackoffMax: longest})
		if pause := inbox.pause(attempts); pause < expected/2 || pause > expected {
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
