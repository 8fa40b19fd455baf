package contracts

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// depthMax is how deep the relay reads.
const depthMax = 127

// parse reads JSON as the relay does.
func parse(payload []byte) (any, error) {
	if !utf8.Valid(payload) || hasHalves(payload) {
		return nil, errors.New("a text is not Unicode")
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(payload))
	if err != nil {
		return nil, err
	}
	return value, look(value, 0)
}

// hasHalves finds half of a character, which Go would replace: an escaped surrogate without the other one.
func hasHalves(payload []byte) bool {
	for at := 0; at < len(payload); at++ {
		if payload[at] != '\\' {
			continue
		}
		unit := unitAt(payload, at)
		if unit < 0xd800 || unit > 0xdfff {
			at++ // what is escaped may be another backslash
			continue
		}
		second := unitAt(payload, at+6)
		if unit > 0xdbff || second < 0xdc00 || second > 0xdfff {
			return true
		}
		at += 11
	}
	return false
}

// unitAt is the escaped code unit at this place, or -1.
func unitAt(payload []byte, at int) int64 {
	if at+6 > len(payload) || payload[at] != '\\' || payload[at+1] != 'u' {
		return -1
	}
	unit, err := strconv.ParseInt(string(payload[at+2:at+6]), 16, 32)
	if err != nil {
		return -1
	}
	return unit
}

// look refuses values that Go accepts: numbers out of range, and too deep a nesting.
func look(value any, depth int) error {
	var inner []any
	switch value := value.(type) {
	case json.Number:
		if number, err := value.Float64(); err != nil || math.IsInf(number, 0) {
			return errors.New("a number is out of range")
		}
		return nil
	case []any:
		inner = value
	case map[string]any:
		for _, one := range value {
			inner = append(inner, one)
		}
	default:
		return nil
	}
	if depth == depthMax {
		return errors.New("it is nested too deeply")
	}
	for _, one := range inner {
		if err := look(one, depth+1); err != nil {
			return err
		}
	}
	return nil
}
