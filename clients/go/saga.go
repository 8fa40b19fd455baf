package oncebox

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Action is the decision for an action.
type Action string

const (
	// Act: have the effect.
	Act Action = "act"
	// Acted: it had its effect before; answer as you did then.
	Acted Action = "acted"
	// Refused: its compensation came first, or another attempt is newer; never act, answer with a no.
	Refused Action = "refused"
)

// Compensation is the decision for a compensation.
type Compensation string

const (
	// Undo the action's effect.
	Undo Compensation = "undo"
	// Nothing is to be undone, which is a success.
	Nothing Compensation = "nothing"
	// Wait: a leased run in Rust is under way; return RetryAfter.
	Wait Compensation = "wait"
)

// Barrier stands before the actions and compensations of one kind in a service, such as
// "stock-service:reserve". In any order and number, the effect of one of the two remains. Both handlers
// use a barrier of the same name, in the same database. Never rename one while sagas are under way.
type Barrier struct {
	Name string
	// Schema is "oncebox" when it is empty.
	Schema string
}

// Action asks, before the effect of an action, whether it may have it. Call HadNoEffect if you refuse the
// command then.
func (b Barrier) Action(ctx context.Context, tx pgx.Tx, message Message) (Action, error) {
	answer, err := b.ask(ctx, tx, message, "enter_action", false)
	return Action(answer), err
}

// HadNoEffect is for an action that may act, but rejects the command: there is nothing to undo.
func (b Barrier) HadNoEffect(ctx context.Context, tx pgx.Tx, message Message) error {
	_, err := b.ask(ctx, tx, message, "end_action", false)
	return err
}

// Compensation asks before a compensation undoes anything; its key is the action's with ":undo" at
// its end.
func (b Barrier) Compensation(ctx context.Context, tx pgx.Tx, message Message) (Compensation, error) {
	answer, err := b.ask(ctx, tx, message, "enter_compensation", true)
	return Compensation(answer), err
}

// HasUndoneNothing is for a compensation that was told to undo, but rejects the command: the next attempt
// may undo.
func (b Barrier) HasUndoneNothing(ctx context.Context, tx pgx.Tx, message Message) error {
	_, err := b.ask(ctx, tx, message, "end_compensation", true)
	return err
}

func (b Barrier) ask(ctx context.Context, tx pgx.Tx, message Message, function string, isUndo bool) (answer string, err error) {
	key, attempt, err := action(message, isUndo)
	if err != nil {
		return "", err
	}
	sql := "SELECT {schema}." + function + "($1::text, $2::text, $3::text, false, $4::text::integer)"
	err = tx.QueryRow(ctx, inSchema(sql, b.Schema), b.Name, message.Tenant, key, attempt).Scan(&answer)
	return answer, err
}

// Replier answers commands on the subjects that a participant allows, such as "sagas.replies" or
// "sagas.*.replies", and on no other: otherwise any sender of a command could make this service
// publish anywhere.
type Replier struct {
	Allowed []string
	// Schema is "oncebox" when it is empty.
	Schema string
}

// Reply enqueues the answer to a command in the handler's transaction; result is the value that the
// handler returns then, a [Reject] for a no. It returns whether it was: not when the command names
// no subject, nor once more for a copy.
func (r Replier) Reply(ctx context.Context, tx pgx.Tx, message Message, result any) (isSent bool, err error) {
	subject, isThere, err := single(message.Headers, "oncebox-reply-to")
	if err != nil || !isThere {
		return false, err
	}
	isAllowed := false
	for _, pattern := range r.Allowed {
		isAllowed = isAllowed || matches(strings.Split(pattern, "."), strings.Split(subject, "."))
	}
	if !isAllowed {
		return false, fmt.Errorf("the command asks for its answer on subject %s, and %s is allowed", subject, strings.Join(r.Allowed, ", "))
	}
	word := "done"
	if reject, isReject := result.(Reject); isReject {
		word, result = "rejected", reject.Reply
	}
	key, err := StepKey(message.Key, "reply")
	if err != nil {
		return false, err
	}
	payload, err := json.Marshal(result)
	if err != nil {
		return false, err
	}
	orderingKey, _, err := single(message.Headers, "oncebox-ordering-key")
	if err != nil {
		return false, err
	}
	headers := map[string]string{"Reply-Outcome": word, "In-Reply-To": message.Key}
	if scope := strings.TrimSpace(message.Scope); scope != "" {
		headers["Reply-Scope"] = scope
	}
	id, err := Enqueue(ctx, tx, Outgoing{
		Key: key, Subject: subject, Payload: payload, OrderingKey: orderingKey, Schema: r.Schema, Headers: headers,
	})
	return id != 0, err
}

var attemptPattern = regexp.MustCompile(`^[0-9]+$`)

// action is the key of the action, which all its attempts share, and the number of this attempt.
func action(message Message, isUndo bool) (key, attempt string, err error) {
	key, isCompensation := strings.CutSuffix(message.Key, ":undo")
	if isCompensation != isUndo {
		return "", "", fmt.Errorf("key %q: that it is of a compensation is %t", message.Key, isCompensation)
	}
	attempt, _, err = single(message.Headers, "saga-attempt")
	if err != nil {
		return "", "", err
	}
	bare, isNumbered := strings.CutSuffix(key, ":#"+attempt)
	number, invalid := strconv.ParseInt(attempt, 10, 32)
	if isNumbered && invalid == nil && number > 1 && attemptPattern.MatchString(attempt) {
		return bare, attempt, nil
	}
	return key, "1", nil
}

func matches(pattern, subject []string) bool {
	if last := len(pattern) - 1; pattern[last] == ">" {
		return len(subject) > last && (last == 0 || matches(pattern[:last], subject[:last]))
	}
	if len(pattern) != len(subject) {
		return false
	}
	for n, token := range pattern {
		if token != "*" && token != subject[n] {
			return false
		}
	}
	return true
}
