package oncebox

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// All that is sent to PostgreSQL for the package itself are texts, which its statements cast, and all
// that it reads are texts: so neither the pool's mode of queries nor its types change anything here.

// session is the session as a handler may change it for good. A setting of its transaction ends
// with COMMIT.
var session = "concat_ws(' ', session_user, current_user, current_setting('" + strings.Join([]string{
	"search_path", "default_transaction_read_only", "default_transaction_isolation", "default_transaction_deferrable",
	"row_security", "session_replication_role", "lock_timeout", "DateStyle", "IntervalStyle", "TimeZone",
	"client_encoding", "standard_conforming_strings",
}, "'), current_setting('") + "'))"

// The most bytes of a reason.
const reasonMax = 2000

func bytea(value []byte) string { return `\x` + hex.EncodeToString(value) }

// object is a JSON object of headers.
func object(headers map[string]string) string {
	clean := make(map[string]string, len(headers))
	for name, value := range headers {
		clean[printable(name)] = printable(value)
	}
	text, _ := json.Marshal(clean) // texts have JSON
	return string(text)
}

// storedHeaders are a message's headers as all inboxes store them: a name that occurs more than once
// has an array.
func storedHeaders(message Message) string {
	if message.sent == nil {
		return object(message.Headers)
	}
	clean := make(map[string]any, len(message.sent))
	for name, values := range message.sent {
		texts := make([]string, len(values))
		for n, value := range values {
			texts[n] = printable(value)
		}
		if clean[printable(name)] = any(texts); len(texts) == 1 {
			clean[printable(name)] = texts[0]
		}
	}
	text, _ := json.Marshal(clean) // texts have JSON
	return string(text)
}

// stored is where a message is stored: NULLs for one that is in no stream.
func (o *Origin) stored() arguments {
	if o == nil {
		return nil
	}
	return arguments{"stream text", o.Stream, "stream_sequence bigint", strconv.FormatUint(o.Sequence, 10),
		"stored_at timestamptz", o.StoredAt.UTC().Format(time.RFC3339Nano)}
}

// messageID is the message's id in the outbox, which a relay sends in a header; NULL if there is none.
func messageID(message Message) any {
	id := message.Headers["oncebox-id"]
	if _, err := strconv.ParseUint(id, 10, 64); err != nil || len(id) > 18 {
		return nil
	}
	return id
}

// named are the arguments of a key.
func (in *Inbox) named(message Message, more ...any) arguments {
	return append(arguments{"scope text", in.scope, "key text", optional(message.Key), "tenant text", message.Tenant}, more...)
}

// optional is NULL instead of an empty text.
func optional(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// interval is a time as PostgreSQL reads it.
func interval(duration time.Duration) string { return seconds(duration) + " s" }

func seconds(duration time.Duration) string {
	return strconv.FormatFloat(duration.Seconds(), 'f', -1, 64)
}

func deliveries(message Message) string { return strconv.FormatInt(max(message.Deliveries, 1), 10) }

// reasonOf is an error's text in a line, with its causes and all errors of a group; fmt survives an error
// that panics.
func reasonOf(err error) string {
	text := strings.Join(strings.FieldsFunc(fmt.Sprint(err), func(r rune) bool { return r == '\n' }), "; ")
	return printable(text[:min(len(text), reasonMax)])
}

// printable makes a text that PostgreSQL can store: UTF-8 without NUL.
func printable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\ufffd"), "\x00", "\ufffd")
}

// lock is 64 bits that stand for a key in advisory locks, as the function inbox_lock() computes them.
func (in *Inbox) lock(message Message) int64 {
	hash := sha256.New()
	for _, field := range []string{"oncebox inbox 1", cmp.Or(in.options.Schema, "oncebox"), in.scope, message.Tenant, message.Key} {
		hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(field))))
		hash.Write([]byte(field))
	}
	return int64(binary.BigEndian.Uint64(hash.Sum(nil)))
}
