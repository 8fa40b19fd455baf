-- The kinds of events that are sent.
-- Index: event_kind_pkey. Locking: none.
SELECT kind
FROM {schema}.event_kind
ORDER BY kind
