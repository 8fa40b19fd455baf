-- Cancel delayed messages, and record it; those that have been moved into the log meanwhile stay.
-- $1: keys; $2: operator; $3: note. Index: those of the function. Locking: the rows that are
-- cancelled; a relay skips them.
SELECT id FROM {schema}.cancel_delayed_messages($1, $2, $3) AS t (id)
