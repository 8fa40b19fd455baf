package oncebox

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

var (
	stepPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)
	partPattern = regexp.MustCompile(`^#(0|[1-9][0-9]{0,9})$`)
	escape      = strings.NewReplacer("%", "%25", ":", "%3A")
	unescape    = strings.NewReplacer("%25", "%", "%3A", ":")
)

// RootKey is the root key of a client's text: 1 to 128 visible ASCII characters. It escapes ":" and
// "%". Keys are derived as in SQL and Rust, level by level: root:step:#part:undo.
func RootKey(clientKey string) (string, error) {
	if len(clientKey) < 1 || len(clientKey) > 128 {
		return "", fmt.Errorf("root key is %d bytes long; the limit is 1 to 128 bytes", len(clientKey))
	}
	if strings.ContainsFunc(clientKey, func(r rune) bool { return r < '!' || r > '~' }) {
		return "", fmt.Errorf("root key %q has a character outside visible ASCII", clientKey)
	}
	return bounded(escape.Replace(clientKey))
}

// StepKey is the key of a step: key:step.
func StepKey(key, step string) (string, error) {
	if !stepPattern.MatchString(step) || step == "undo" {
		return "", fmt.Errorf(`step %q does not match [a-z0-9][a-z0-9._-]{0,63}, or is "undo"`, step)
	}
	return level(key, step)
}

// PartKey is the key of one of several messages that a step sends: key:#part.
func PartKey(key string, part uint32) (string, error) {
	return level(key, "#"+strconv.FormatUint(uint64(part), 10))
}

// UndoKey is the key of the compensation: key:undo.
func UndoKey(key string) (string, error) {
	if strings.HasSuffix(key, ":undo") {
		return "", fmt.Errorf("key %q is an undo already", key)
	}
	return level(key, "undo")
}

// CheckKey fails unless this is a valid key.
func CheckKey(key string) error {
	if _, err := bounded(key); err != nil {
		return err
	}
	levels := strings.Split(key, ":")
	root, err := RootKey(unescape.Replace(levels[0]))
	isKey := err == nil && root == levels[0]
	for i, level := range levels[1:] {
		isUndoTwice := i > 0 && level == "undo" && levels[i] == "undo"
		isKey = isKey && !isUndoTwice && (stepPattern.MatchString(level) || isPart(level))
	}
	if !isKey {
		return fmt.Errorf(`key %q is not ROOT or ROOT:STEP...: write ":" and "%%" of the root as %%3A and %%25`, key)
	}
	return nil
}

func isPart(level string) bool {
	if !partPattern.MatchString(level) {
		return false
	}
	_, err := strconv.ParseUint(level[1:], 10, 32)
	return err == nil
}

func level(key, level string) (string, error) {
	if err := CheckKey(key); err != nil {
		return "", err
	}
	return bounded(key + ":" + level)
}

func bounded(key string) (string, error) {
	if len(key) < 1 || len(key) > 255 {
		return "", fmt.Errorf("key is %d bytes long; the limit is 1 to 255 bytes", len(key))
	}
	return key, nil
}
