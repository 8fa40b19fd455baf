package oncebox

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
)

// answer is a whole response.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) send(writer http.ResponseWriter) {
	for name, values := range a.header {
		// These two say several things, of which a layer before this one may have said some.
		if before := writer.Header()[name]; name == "Set-Cookie" || name == "Vary" {
			values = slices.Concat(before, values)
		}
		writer.Header()[name] = values
	}
	writer.WriteHeader(a.status)
	_, _ = writer.Write(a.body)
}

// capture takes the response of a handler.
type capture struct {
	answer
	buffer bytes.Buffer
}

func (c *capture) Header() http.Header { return c.header }

func (c *capture) WriteHeader(status int) {
	// Informational ones come before the response.
	if c.status == 0 && status >= 200 {
		c.status = status
	}
}

func (c *capture) Write(part []byte) (int, error) {
	c.WriteHeader(http.StatusOK)
	return c.buffer.Write(part)
}

// ended is the whole response, with the content type that net/http would find out.
func (c *capture) ended() answer {
	c.WriteHeader(http.StatusOK)
	c.body = c.buffer.Bytes()
	if _, isThere := c.header["Content-Type"]; !isThere && len(c.body) > 0 && c.header.Get("Content-Encoding") == "" {
		c.header.Set("Content-Type", http.DetectContentType(c.body))
	}
	return c.answer
}

// clientKey is the client's key, and whether there is one. A header that comes several times must
// say the same each time: the layer cannot know which one the client means.
func clientKey(header http.Header) (key string, isThere bool, err error) {
	values := header.Values("Idempotency-Key")
	if len(values) == 0 {
		return "", false, nil
	}
	key, isKey := unquoted(trimmed(values[0]))
	for _, other := range values {
		isKey = isKey && other == values[0]
	}
	if _, err := RootKey(key); err != nil || !isKey {
		return "", true, problem{name: "key-malformed"}
	}
	return key, true, nil
}

// unquoted is the string of a structured field (RFC 9651), or a bare token, as many clients send it.
func unquoted(text string) (string, bool) {
	inner, isQuoted := strings.CutPrefix(text, `"`)
	if !isQuoted {
		return text, !strings.ContainsAny(text, `"\,;`)
	}
	inner, isClosed := strings.CutSuffix(inner, `"`)
	var content strings.Builder
	for at := 0; at < len(inner); at++ {
		if inner[at] == '"' {
			return "", false
		}
		if inner[at] == '\\' {
			if at++; at == len(inner) || inner[at] != '"' && inner[at] != '\\' {
				return "", false
			}
		}
		content.WriteByte(inner[at])
	}
	return content.String(), isClosed
}

// latin1 is a text whose characters are these bytes.
func latin1(bytes string) string {
	runes := make([]rune, len(bytes))
	for at := range len(bytes) {
		runes[at] = rune(bytes[at])
	}
	return string(runes)
}

func fromLatin1(text string) string {
	bytes := make([]byte, 0, len(text))
	for _, character := range text {
		bytes = append(bytes, byte(character))
	}
	return string(bytes)
}
