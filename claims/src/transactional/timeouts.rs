//! Which limits PostgreSQL itself puts on a message's transaction.
//!
//! The handler's limit is the inbox's own; it ends the transaction by closing the connection.
//! PostgreSQL's limits end the transaction of a process that hangs, and a statement that goes on
//! after its connection was closed. Since version 17 PostgreSQL has one limit for both; older
//! versions need two.

use std::time::Duration;

use crate::limits::Limits;

/// The first version with `transaction_timeout`, as `server_version_num` has it.
const TRANSACTION_TIMEOUT_SINCE: i32 = 170_000;

/// A handler that computes for long is idle in its transaction meanwhile; this lets its own limit
/// come first.
const MARGIN: Duration = Duration::from_secs(5);

/// Fills in the timeouts of `claim.sql` for a server of this version, and leaves out those that are
/// not needed.
pub(crate) fn fill_in(template: &str, limits: &Limits, server_version: i32) -> String {
    let whole = Some(limits.handler_timeout + MARGIN);
    let values = if server_version >= TRANSACTION_TIMEOUT_SINCE {
        [whole, None, limits.statement_timeout, limits.lock_timeout]
    } else {
        [None, whole, limits.statement_timeout.or(whole), limits.lock_timeout]
    };
    let names = ["{transaction_timeout}", "{idle_timeout}", "{statement_timeout}", "{lock_timeout}"];
    let line = |line: &str| match names.iter().zip(values).find(|(name, _)| line.contains(**name)) {
        Some((name, value)) => Some(line.replace(*name, &value?.as_millis().to_string())),
        None => Some(line.to_owned()),
    };
    template.lines().filter_map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPLATE: &str =
        "a\nb {transaction_timeout}ms\nc {idle_timeout}ms\nd {statement_timeout}ms\ne {lock_timeout}ms\nf";

    fn check(limits: &Limits, server_version: i32, expected: &str) {
        assert_eq!(fill_in(TEMPLATE, limits, server_version), expected, "{server_version}");
    }

    #[test]
    fn only_needed_timeouts_are_set() {
        let limits = Limits::DEFAULT;
        check(&limits, 180_004, "a\nb 65000ms\nf");
        check(&limits, 150_014, "a\nc 65000ms\nd 65000ms\nf");
        let second = Some(Duration::from_secs(1));
        let limits = Limits { statement_timeout: second, lock_timeout: second, ..limits };
        check(&limits, 170_000, "a\nb 65000ms\nd 1000ms\ne 1000ms\nf");
        check(&limits, 169_999, "a\nc 65000ms\nd 1000ms\ne 1000ms\nf");
    }
}
