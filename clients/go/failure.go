package oncebox

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// code is the SQLSTATE of an error, or of one that it wraps; empty if PostgreSQL has not answered. All
// drivers of Go have this method.
func code(err error) string {
	if refused, isRefused := errors.AsType[interface {
		error
		SQLState() string
	}](err); isRefused {
		return refused.SQLState()
	}
	return ""
}

// isConflict says that the transaction has lost a race, and is to be run again.
func isConflict(err error) bool { return code(err) == "40001" || code(err) == "40P01" }

// isSpoiling says that the connection leads to a server that has been demoted, or ends.
func isSpoiling(err error) bool {
	state := code(err)
	return state == "25006" || strings.HasPrefix(state, "57P0") || strings.HasPrefix(state, "08")
}

// isConnectionLost says that a step before the handler has failed with its connection.
func isConnectionLost(err error) bool {
	_, isVerdict := errors.AsType[verdict](err)
	_, isConnecting := errors.AsType[*pgconn.ConnectError](err)
	return isConnecting || isSpoiling(err) || code(err) == "" && !isVerdict
}

// asError makes an error of a panic. The stack goes to the log.
func asError(panicked any, key string) error {
	slog.Error("the handler panicked", "key", key, "panic", fmt.Sprint(panicked), "stack", string(debug.Stack()))
	if err, isError := panicked.(error); isError {
		return fmt.Errorf("the handler panicked: %w", err)
	}
	return fmt.Errorf("the handler panicked: %v", panicked)
}
