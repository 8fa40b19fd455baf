-- The messages that this transaction has enqueued, in their order; delayed ones have their content
-- in a table of their own.
-- Index: none; a test's database is small. Locking: none.
SELECT m.key, m.subject, coalesce(d.ordering_key, m.ordering_key), coalesce(d.headers, m.headers)::text,
       coalesce(d.payload, m.payload), d.not_before
FROM {schema}.message AS m
LEFT JOIN {schema}.delayed AS d ON m.lane = -1 AND d.id = m.id
WHERE m.xact = pg_current_xact_id_if_assigned()
ORDER BY m.id
