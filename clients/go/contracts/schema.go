package contracts

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

const (
	// folderURL stands for the folder of the file, in references.
	folderURL = "oncebox:///"
	rootURL   = folderURL + ".schema"
	draft     = "https://json-schema.org/draft/2020-12/schema"
)

// schema is one of JSON Schema 2020-12, with the files beside it that it refers to.
type schema struct {
	compiled *jsonschema.Schema
	folder   string
	// documents are the schema and these files, by their URLs.
	documents map[string]any
	// names stand in them, so a reason may show them.
	names map[string]bool
}

func newSchema(document any, folder string) (*schema, error) {
	made := &schema{folder: folder, documents: map[string]any{}, names: map[string]bool{}}
	if err := made.know(rootURL, document); err != nil {
		return nil, err
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.UseLoader(made)
	if err := compiler.AddResource(rootURL, document); err != nil {
		return nil, err
	}
	var err error
	made.compiled, err = compiler.Compile(rootURL)
	var invalid *jsonschema.SchemaValidationError
	if errors.As(err, &invalid) {
		// The last line is about the innermost part.
		lines := strings.Split(invalid.Err.Error(), "\n")
		err = errors.New(strings.TrimLeft(lines[len(lines)-1], " -"))
	}
	return made, err
}

// Load reads a file beside the contracts; nothing else, and no network.
func (schema *schema) Load(given string) (any, error) {
	path, isBeside := strings.CutPrefix(given, folderURL)
	if !isBeside {
		return nil, errors.New("a schema refers only to files in the folder of its contracts, or below")
	}
	path, err := url.PathUnescape(path)
	if err != nil || !filepath.IsLocal(path) {
		return nil, errors.New("the file lies outside of the folder of the contracts")
	}
	text, err := os.ReadFile(filepath.Join(schema.folder, path))
	if err != nil {
		return nil, err
	}
	document, err := parse(text)
	if err != nil {
		return nil, err
	}
	return document, schema.know(given, document)
}

func (schema *schema) know(place string, document any) error {
	switch document.(type) {
	case map[string]any, bool:
	default:
		return errors.New("is not a JSON Schema: neither an object nor true or false")
	}
	schema.documents[place] = document
	return schema.knowNames(document)
}

// knowNames refuses a part of another draft.
func (schema *schema) knowNames(part any) error {
	switch part := part.(type) {
	case map[string]any:
		named, _ := part["$schema"].(string)
		if named = strings.TrimRight(named, "#"); named != "" && named != draft {
			return fmt.Errorf("is written in %q; use %q, or leave $schema out", named, draft)
		}
		for name, inner := range part {
			schema.names[name] = true
			if err := schema.knowNames(inner); err != nil {
				return err
			}
		}
	case []any:
		for _, inner := range part {
			if err := schema.knowNames(inner); err != nil {
				return err
			}
		}
	}
	return nil
}

func (schema *schema) breach(value any) *Breach {
	var failed *jsonschema.ValidationError
	err := schema.compiled.Validate(value)
	if err == nil {
		return nil
	}
	if !errors.As(err, &failed) {
		return &Breach{Reason: noJSON}
	}
	failed = cause(failed)
	at := failed.InstanceLocation
	isUnevaluated := strings.HasSuffix(failed.SchemaURL, "/unevaluatedProperties") || strings.HasSuffix(failed.SchemaURL, "/unevaluatedItems")
	if isUnevaluated && len(failed.ErrorKind.KeywordPath()) == 0 {
		at = at[:len(at)-1] // the rule is that of the object or array
	}
	var pointer strings.Builder
	for _, segment := range at {
		_, isObject := value.(map[string]any)
		value = inner(value, segment)
		if isObject && !schema.names[segment] {
			segment = "*"
		}
		pointer.WriteString("/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(segment))
	}
	return &Breach{Pointer: pointer.String(), Reason: bounded(schema.reason(failed, value))}
}

// lookUp finds the part of a schema at a URL.
func (schema *schema) lookUp(given string) any {
	place, fragment, _ := strings.Cut(given, "#")
	part := schema.documents[place]
	for segment := range strings.SplitSeq(fragment, "/") {
		if segment != "" {
			segment, _ = url.PathUnescape(segment)
			part = inner(part, strings.NewReplacer("~1", "/", "~0", "~").Replace(segment))
		}
	}
	return part
}

func inner(value any, segment string) any {
	switch value := value.(type) {
	case map[string]any:
		return value[segment]
	case []any:
		var at int
		if _, err := fmt.Sscan(segment, &at); err == nil && at >= 0 && at < len(value) {
			return value[at]
		}
	}
	return nil
}

// cause is the first error, in the order of their places, that has no causes of its own.
func cause(failed *jsonschema.ValidationError) *jsonschema.ValidationError {
	keyword := failed.ErrorKind.KeywordPath()
	if len(failed.Causes) == 0 || slices.ContainsFunc(keyword, isWhole) {
		return failed
	}
	place := func(one *jsonschema.ValidationError) string {
		return strings.Join(one.InstanceLocation, "/") + " " + one.SchemaURL
	}
	first := *slices.MinFunc(failed.Causes, func(a, b *jsonschema.ValidationError) int {
		return strings.Compare(place(a), place(b))
	})
	if _, isName := failed.ErrorKind.(*kind.PropertyNames); isName {
		first.InstanceLocation = failed.InstanceLocation // a name has no place of its own
	}
	return cause(&first)
}

// isWhole says whether the rule with this keyword is named, and not one within it.
func isWhole(keyword string) bool {
	return slices.Contains([]string{"anyOf", "oneOf", "contains", "minContains", "maxContains"}, keyword)
}
