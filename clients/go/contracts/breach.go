package contracts

import (
	"fmt"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

const (
	noJSON  = "the payload is not JSON, or nested too deeply"
	textMax = 300
)

// rules are the words of the relay, for a rule with this value; the others are named by their place
// in the schema.
var rules = map[string]string{
	"minimum":          "the value is less than the minimum of %s",
	"maximum":          "the value is greater than the maximum of %s",
	"exclusiveMinimum": "the value is less than or equal to the minimum of %s",
	"exclusiveMaximum": "the value is greater than or equal to the maximum of %s",
	"multipleOf":       "the value is not a multiple of %s",
	"minLength":        "the value is shorter than %s character",
	"maxLength":        "the value is longer than %s character",
	"type":             "the value is not of type %s",
	"const":            "%s was expected",
}

// Breach says how a payload breaks its contract. Nothing of the payload is shown, as in the relay.
type Breach struct {
	// Pointer is the place in the payload, as a JSON Pointer; a name that the schema does not have is `*`.
	Pointer string
	Reason  string
}

func (breach *Breach) Error() string {
	if breach.Pointer == "" {
		return breach.Reason
	}
	return fmt.Sprintf("at %s: %s", breach.Pointer, breach.Reason)
}

// reason says which rule this value breaks.
func (schema *schema) reason(failed *jsonschema.ValidationError, value any) string {
	keyword := strings.Join(failed.ErrorKind.KeywordPath(), "/")
	if _, isNot := failed.ErrorKind.(*kind.Not); isNot {
		keyword = "not"
	}
	rule := schema.lookUp(failed.SchemaURL + "#/" + keyword)
	if strings.Contains(failed.SchemaURL, "#") {
		rule = schema.lookUp(failed.SchemaURL + "/" + keyword)
	}
	several, _ := rule.([]any)
	_, fragment, _ := strings.Cut(failed.SchemaURL, "#")
	format, isKnown := rules[keyword]
	switch {
	case strings.Contains(fragment, "/propertyNames"):
	case keyword == "required":
		for _, name := range several {
			if _, isThere := value.(map[string]any)[name.(string)]; !isThere {
				return compact(name) + " is a required property"
			}
		}
	case keyword == "enum":
		return "the value is not one of " + list(several)
	case keyword == "pattern":
		return fmt.Sprintf("the value does not match \"%s\"", rule)
	case keyword == "uniqueItems":
		return "the value has non-unique elements"
	case keyword == "anyOf":
		return "the value is not valid under any of the schemas listed in the 'anyOf' keyword"
	case keyword == "type" && several != nil:
		texts := make([]string, len(several))
		for at, one := range several {
			texts[at] = compact(one)
		}
		return "the value is not of types " + strings.Join(texts, ", ")
	case isKnown:
		reason := fmt.Sprintf(format, compact(rule))
		if strings.HasSuffix(keyword, "Length") && compact(rule) != "1" {
			reason += "s"
		}
		return reason
	}
	if keyword != "" {
		fragment += "/" + keyword
	}
	if fragment == "" {
		return "breaks the schema"
	}
	return fmt.Sprintf("breaks %s of the schema", fragment)
}

// list has the last one after "or".
func list(several []any) string {
	var text strings.Builder
	for at, one := range several {
		switch {
		case at == 0:
		case at == len(several)-1:
			text.WriteString(" or ")
		default:
			text.WriteString(", ")
		}
		text.WriteString(compact(one))
	}
	return text.String()
}

// bounded cuts a text that is too long.
func bounded(text string) string {
	if characters := []rune(text); len(characters) > textMax {
		return string(characters[:textMax]) + "..."
	}
	return text
}
