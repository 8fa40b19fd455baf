-- Look at delayed messages in the order of their times.
-- $1, $2: after this time and this id; $3: messages to look at, at most; $4: a key, which alone is
-- looked for then; $5: regular expression of a subject; $6: an ordering key.
-- Index: delayed_due; with a key delayed_key_unique. Locking: none; a cancellation looks again.
WITH seen AS MATERIALIZED (
  (
    SELECT d.id, d.key, d.subject, d.ordering_key, d.payload, d.not_before, d.created_at
    FROM {schema}.delayed AS d
    WHERE $4::text IS NOT NULL AND d.key = $4::text AND (d.not_before, d.id) > ($1, $2)
  )
  UNION ALL
  (
    SELECT d.id, d.key, d.subject, d.ordering_key, d.payload, d.not_before, d.created_at
    FROM {schema}.delayed AS d
    WHERE $4::text IS NULL AND (d.not_before, d.id) > ($1, $2)
    ORDER BY d.not_before, d.id
    LIMIT $3
  )
)
SELECT
  s.id,
  s.key,
  s.subject,
  s.ordering_key,
  s.not_before,
  s.created_at,
  octet_length(s.payload)::bigint AS payload_bytes,
  (
    ($5::text IS NULL OR s.subject COLLATE "C" ~ $5)
    AND ($6::text IS NULL OR s.ordering_key = $6)
  ) IS TRUE AS selected
FROM seen AS s
ORDER BY s.not_before, s.id
