-- Look for messages that are not in their inbox in time, where that is in this database; a row for
-- each expectation that was looked at, or is to be.
-- Locking: the rows of the expectations, where no other session has them.
SELECT d.expectation, d.scope, d.inbox_database, d.first_xact::text AS first_xact, d.end_xact::text AS end_xact, d.is_behind,
  d.fault
FROM {schema}.look_for_unhandled() AS d
