-- Have kinds of events sent, and record it. Returns those that were not sent before.
-- $1: kinds; $2: operator; $3: note. Index: event_kind_pkey. Locking: none.
SELECT kind FROM {schema}.enable_events($1, $2, $3) AS t (kind)
