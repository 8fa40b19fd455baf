-- The delayed message with a key, and those of the steps below it, in one row: an array of JSON, in
-- the order of the function, for drivers whose rows have other types. Times are in microseconds
-- since 1970. $1: the key; $2: messages at most.
-- Index: delayed_key_unique, inside the function. Locks: none.
SELECT coalesce(json_agg(json_build_object(
  'key', d.key, 'subject', d.subject, 'ordering_key', d.ordering_key,
  'not_before', (extract(epoch FROM d.not_before) * 1000000)::bigint,
  'created_at', (extract(epoch FROM d.created_at) * 1000000)::bigint
) ORDER BY d.ordinality), '[]')::text
FROM {schema}.list_delayed($1::text, $2::bigint::integer)
  WITH ORDINALITY AS d (key, subject, ordering_key, not_before, created_at, ordinality)
