-- Stop a canary, and record it. False when it has ended.
-- $1: its id; $2: operator; $3: note. Index: canary_pkey. Locking: the canary; it waits for the
-- step that a relay takes.
SELECT {schema}.stop_canary($1, $2, $3)
