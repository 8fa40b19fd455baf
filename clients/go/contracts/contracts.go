// Package contracts is for your tests: a message that the relay would refuse fails the test of its
// producer. See docs/contracts.md. It is a module of its own, since the client needs no validator.
package contracts

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const subjectMax = 255

var pattern = regexp.MustCompile(`^(?:>|(?:\*|[!-)+,\-/-=?-~]+)(?:\.(?:\*|[!-)+,\-/-=?-~]+))*(?:\.>)?)$`)

// Contracts are those of a file, as `oncebox contract check` and the relay read it.
type Contracts struct {
	all []contract
}

type contract struct {
	subject string
	schema  *schema
}

// Read reads a file, and the files beside it that its schemas refer to. The error has all that is
// wrong with it, a line each.
func Read(path string) (*Contracts, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	document, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	needed, others := map[string]any{"contracts": []any{}}, map[string]any{"title": "", "version": ""}
	whole, err := fields(document, needed, others)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var mistakes []error
	made := &Contracts{}
	for number, entry := range whole["contracts"].([]any) {
		for _, err := range made.add(entry, filepath.Dir(path)) {
			mistakes = append(mistakes, fmt.Errorf("%s: /contracts/%d%w", path, number, err))
		}
	}
	if len(mistakes) > 0 {
		return nil, errors.Join(mistakes...)
	}
	return made, nil
}

// add returns the mistakes of an entry, each with its place in the entry.
func (contracts *Contracts) add(given any, folder string) (mistakes []error) {
	mistake := func(format string, values ...any) { mistakes = append(mistakes, fmt.Errorf(format, values...)) }
	needed, others := map[string]any{"subject": "", "schema": nil}, map[string]any{"consumers": []any{}, "examples": []any{}}
	entry, err := fields(given, needed, others)
	if err != nil {
		mistake(": %w", err)
		return mistakes
	}
	subject := entry["subject"].(string)
	isReserved := strings.HasPrefix(subject, "$") || strings.HasPrefix(subject, "_INBOX.") || strings.HasPrefix(subject, `"`)
	if isReserved || !pattern.MatchString(subject) || len(subject) > subjectMax {
		mistake("/subject: %q is no subject, and no pattern of subjects", subject)
	} else if other := contracts.of(subject); other != nil {
		mistake("/subject: %q has subjects in common with %q; a message has one contract", subject, other.subject)
	}
	schema, err := newSchema(entry["schema"], folder)
	if err != nil {
		mistake("/schema: %w", err)
		return mistakes
	}
	examples, _ := entry["examples"].([]any)
	for place, example := range examples {
		if breach := schema.breach(example); breach != nil {
			mistake("/examples/%d: breaks the schema: %w", place, breach)
		}
	}
	contracts.all = append(contracts.all, contract{subject, schema})
	return mistakes
}

// Check returns a [*Breach] for a payload that the relay would refuse.
func (contracts *Contracts) Check(subject string, payload []byte) error {
	contract := contracts.of(subject)
	if contract == nil {
		return nil
	}
	value, err := parse(payload)
	if err != nil {
		return &Breach{Reason: noJSON}
	}
	if breach := contract.schema.breach(value); breach != nil {
		return breach
	}
	return nil
}

func (contracts *Contracts) of(subject string) *contract {
	at := slices.IndexFunc(contracts.all, func(one contract) bool { return overlap(one.subject, subject) })
	if at == -1 {
		return nil
	}
	return &contracts.all[at]
}

// overlap says whether two patterns have a subject in common, or a subject is of a pattern.
func overlap(one, other string) bool {
	ones, others := strings.Split(one, "."), strings.Split(other, ".")
	for at := range min(len(ones), len(others)) {
		a, b := ones[at], others[at]
		if a == ">" || b == ">" {
			return true
		}
		if a != b && a != "*" && b != "*" {
			return false
		}
	}
	return len(ones) == len(others)
}

// fields are those of an object, by examples of their types.
func fields(given any, needed, others map[string]any) (map[string]any, error) {
	object, isObject := given.(map[string]any)
	if !isObject {
		return nil, errors.New("is no object")
	}
	for name := range needed {
		if _, isThere := object[name]; !isThere {
			return nil, fmt.Errorf("misses the field `%s`", name)
		}
	}
	for name, value := range object {
		example, isNeeded := needed[name]
		if !isNeeded {
			var isKnown bool
			if example, isKnown = others[name]; !isKnown {
				return nil, fmt.Errorf("has an unknown field `%s`", name)
			}
		}
		if example != nil && fmt.Sprintf("%T", example) != fmt.Sprintf("%T", value) {
			return nil, fmt.Errorf("/%s: is of another type", name)
		}
	}
	return object, nil
}

func compact(value any) string {
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(value)
	return strings.TrimSuffix(text.String(), "\n")
}
