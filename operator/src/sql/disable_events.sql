-- Have kinds of events sent no more, and record it. Returns those that were sent before.
-- $1: kinds; $2: operator; $3: note. Index: event_kind_pkey. Locking: the kinds.
SELECT kind FROM {schema}.disable_events($1, $2, $3) AS t (kind)
