package oncebox

import (
	"fmt"
	"slices"
	"strings"
)

// Headers are read as all consumers do: names compare without case, and blanks around values do not
// count.

// collected has names in lower case; the different values of one name are the lines of its text.
func collected(headers map[string][]string) map[string]string {
	all := make(map[string][]string, len(headers))
	for name, values := range headers {
		name = printable(strings.ToLower(name))
		for _, value := range values {
			if value = trimmed(printable(value)); !slices.Contains(all[name], value) {
				all[name] = append(all[name], value)
			}
		}
	}
	lines := make(map[string]string, len(all))
	for name, values := range all {
		slices.Sort(values) // two spellings of one name come in any order
		lines[name] = strings.Join(values, "\n")
	}
	return lines
}

// single is the value of a header, and whether there is one; an error if it has several different ones.
func single(headers map[string]string, name string) (value string, isThere bool, err error) {
	for other, lines := range headers {
		if !strings.EqualFold(other, name) {
			continue
		}
		for line := range strings.SplitSeq(lines, "\n") {
			if line = trimmed(line); isThere && line != value {
				return "", true, fmt.Errorf("header %s has several different values", name)
			}
			value, isThere = trimmed(line), true
		}
	}
	return value, isThere, nil
}

func trimmed(value string) string { return strings.Trim(value, " \t") }
