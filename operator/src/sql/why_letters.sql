-- The dead letters of some keys, of each key the newest first.
-- $1: the keys; $2: letters at most. is_other: the inbox has settled its key with another payload,
-- so a retry dies again; a fingerprint of no bytes is that of every payload, see 0027_edit.sql, and
-- that of a payload is computed as in retry_letter().
-- Index: dead_letter_key, inbox_pkey. Locking: none.
SELECT
  d.id,
  d.key,
  d.scope,
  d.tenant,
  d.deliveries,
  d.reason,
  EXISTS (
    SELECT
    FROM {schema}.inbox AS i
    WHERE i.scope = d.scope
      AND i.tenant = d.tenant
      AND i.key = d.key
      AND i.fingerprint <> ''
      AND i.fingerprint <>
        coalesce(d.fingerprint, sha256(convert_to('oncebox payload 1', 'UTF8') || '\x00'::bytea || d.payload))
    OFFSET 0
  ) AS is_other
FROM (
  SELECT d.*
  FROM {schema}.dead_letter AS d
  WHERE d.key = ANY ($1::text[])
  ORDER BY d.key, d.id DESC
  LIMIT $2
) AS d
ORDER BY d.key, d.id DESC
