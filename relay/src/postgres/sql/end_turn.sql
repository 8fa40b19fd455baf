-- End the turn of the log, if it has lasted the given time; says why it cannot.
-- $1: seconds that a turn takes; $2: milliseconds for which it waits for the lock; $3:
-- seconds in which all relays together try that once.
-- Locking: as drain_segments.sql; and the segment of this turn, in SHARE mode: producers wait.
SELECT {schema}.end_turn($1::float8, $2::integer, $3::float8) AS reason
