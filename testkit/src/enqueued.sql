-- The messages that this transaction has enqueued, in their order, in one row: an array of JSON,
-- for drivers whose rows have other types. Delayed ones have their content in a table of their own.
-- Payloads are in hexadecimal, times in microseconds since 1970.
-- Index: none; a test's database is small. Locking: none.
SELECT coalesce(json_agg(json_build_object(
  'key', m.key, 'subject', m.subject, 'ordering_key', coalesce(d.ordering_key, m.ordering_key),
  'headers', coalesce(d.headers, m.headers), 'payload', encode(coalesce(d.payload, m.payload), 'hex'),
  'not_before', (extract(epoch FROM d.not_before) * 1000000)::bigint
) ORDER BY m.id), '[]')::text
FROM {schema}.message AS m
LEFT JOIN {schema}.delayed AS d ON m.lane = -1 AND d.id = m.id
WHERE m.xact = pg_current_xact_id_if_assigned()
