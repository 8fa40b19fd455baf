package oncebox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

const again = "Send it again with the same key."

// problems are the answers of the layer itself, application/problem+json: those of the crate
// oncebox-http.
var problems = map[string]struct {
	status        int
	title, detail string
}{
	"key-missing":       {400, "This request needs an idempotency key", "Send a new key of high entropy, such as a UUID, with every new request, and the same key with every repetition of it."},
	"key-malformed":     {400, "The idempotency key cannot be read", `The key is one string of 1 to 128 visible ASCII characters without blanks, in double quotes or, without any of the characters " \ , ; in it, bare; given once.`},
	"tenant-missing":    {403, "The request belongs to nobody", "The server could not tell for whom the request is made."},
	"method-unknown":    {501, "The method is not known here", "Nothing was done."},
	"key-reused":        {422, "The idempotency key was used for another request", "The first request with this key had another path, query, content type or body, or other credentials. If this one repeats it, send what you sent first: with a new key it would be done again. Use a new key only for a new request."},
	"in-flight":         {409, "A request with this idempotency key is being worked on", "Its outcome is not known yet. " + again},
	"body-too-large":    {413, "The request's body is too large", "Nothing was done."},
	"body-unreadable":   {400, "The request's body ended too early", "Nothing was done. " + again},
	"response-not-kept": {410, "The request was done, but its response is gone", "Its body was too large to keep. The request was not done a second time, and need not be."},
	"response-unknown":  {410, "A part of the request may be done", "The first request with this key failed after a part of it was committed. The request was not done a second time."},
	"unavailable":       {503, "The database is not available", "Whether the request was done is not known. " + again},
	"too-slow":          {503, "The request took too long", "It has no outcome. " + again},
	"failed":            {500, "The request failed", "It has no outcome. " + again},
	"set-up-wrongly":    {500, "The server is set up wrongly", "Nothing was done."},
}

// problem is why a request is refused.
type problem struct {
	name        string
	firstStatus int
}

func (p problem) Error() string { return p.name }

func (p problem) answer(retryAfter time.Duration, documentation string) answer {
	told := problems[p.name]
	kind := p.name
	if kind == "response-unknown" {
		kind = "response-not-kept"
	}
	content := map[string]any{
		"type": "urn:oncebox:problem:" + kind, "title": told.title, "status": told.status, "detail": told.detail,
	}
	if p.firstStatus != 0 {
		content["first_status"] = p.firstStatus
	}
	header := http.Header{"Content-Type": {"application/problem+json"}}
	if told.status == http.StatusConflict || told.status == http.StatusServiceUnavailable {
		header.Set("Retry-After", strconv.Itoa(max(int(retryAfter.Seconds()), 1)))
	}
	if documentation != "" {
		header.Set("Link", fmt.Sprintf(`<%s>; rel="describedby"`, documentation))
	}
	body, _ := json.Marshal(content) // texts and numbers have JSON
	return answer{told.status, header, body}
}
