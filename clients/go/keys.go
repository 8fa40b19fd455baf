package oncebox

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// The most bytes of a key.
const lengthMax = 255

var (
	stepPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)
	rootPattern = regexp.MustCompile(`^[!-~]{1,128}$`)
	escape      = strings.NewReplacer("%", "%25", ":", "%3A")
	unescape    = strings.NewReplacer("%25", "%", "%3A", ":")
)

// RootKey is the root key of a client's text: 1 to 128 visible ASCII characters. It escapes ":" and
// "%". Keys are derived as in SQL and Rust, level by level: root:step:#part:undo.
func RootKey(clientKey string) (string, error) {
	root := escape.Replace(clientKey)
	if !rootPattern.MatchString(clientKey) || len(root) > lengthMax {
		return "", fmt.Errorf("root key %.130q is not 1 to 128 characters of visible ASCII, %d when escaped", clientKey, lengthMax)
	}
	return root, nil
}

// StepKey is the key of a step: key:step.
func StepKey(key, step string) (string, error) {
	if !stepPattern.MatchString(step) || step == "undo" || strings.HasPrefix(step, "oncebox-") {
		return "", fmt.Errorf(`step %q does not match [a-z0-9][a-z0-9._-]{0,63}, or is "undo" or "oncebox-..."`, step)
	}
	return derive(key, step)
}

// PartKey is the key of one of several messages that a step sends: key:#part.
func PartKey(key string, part uint32) (string, error) {
	return derive(key, "#"+strconv.FormatUint(uint64(part), 10))
}

// UndoKey is the key of the compensation: key:undo.
func UndoKey(key string) (string, error) { return derive(key, "undo") }

// CheckKey fails unless this is a valid key.
func CheckKey(key string) error {
	levels := strings.Split(key, ":")
	root, err := RootKey(unescape.Replace(levels[0]))
	isKey := len(key) <= lengthMax && err == nil && root == levels[0] && !strings.Contains(key+":", ":undo:undo:")
	for _, level := range levels[1:] {
		// As PartKey writes it, without leading zeros.
		part, err := strconv.ParseUint(strings.TrimPrefix(level, "#"), 10, 32)
		isPart := err == nil && level == "#"+strconv.FormatUint(part, 10)
		isKey = isKey && (isPart || stepPattern.MatchString(level))
	}
	if !isKey {
		return fmt.Errorf("key %.300q is not ROOT or ROOT:STEP... of at most %d bytes, "+
			`with ":" and "%%" of the root as %%3A and %%25, and without the undo of an undo`, key, lengthMax)
	}
	return nil
}

func derive(key, level string) (string, error) { return key + ":" + level, CheckKey(key + ":" + level) }
