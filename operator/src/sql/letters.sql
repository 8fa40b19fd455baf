-- Look at dead letters of inboxes in the order of their ids, and say which of them are selected.
-- $1: after this id; $2: letters to look at, at most; $3: an id; $4: a key; $5: a scope; $6:
--   regular expression of a subject;
-- $7: part of the reason, in lower case; $8: its first line; $9: a subject; NULL selects all; $10:
--   whether only those without a key.
-- Index: dead_letter_pkey, inbox_behind_line, inbox_pkey. Locking: none: retry_letter.sql and
-- discard_letters.sql lock the letter's row.
SELECT
  d.id,
  d.scope,
  d.tenant,
  d.key,
  d.subject,
  d.stream,
  d.stream_sequence,
  d.deliveries,
  d.reason,
  d.created_at,
  octet_length(d.payload)::bigint AS payload_bytes,
  d.ordering_key,
  CASE WHEN d.ordering_key IS NOT NULL THEN (
    SELECT count(*)
    FROM (SELECT FROM {schema}.inbox_behind AS b WHERE b.scope = d.scope AND b.ordering_key = d.ordering_key LIMIT 100000) AS b
  ) END AS behind,
  -- The edit of it that has come in its place: see the migration 0027_edit.sql.
  (
    SELECT convert_from(i.outcome, 'UTF8')
    FROM {schema}.inbox AS i
    WHERE i.scope = d.scope AND i.tenant = d.tenant AND i.key = d.key AND i.status = 'dead' AND i.fingerprint = ''
  ) AS edit,
  -- A letter may have no key.
  (
    ($4::text IS NULL OR d.key = $4)
    AND ($5::text IS NULL OR d.scope = $5)
    AND ($6::text IS NULL OR d.subject COLLATE "C" ~ $6)
    AND ($7::text IS NULL OR strpos(lower(d.reason), $7) > 0)
    AND ($8::text IS NULL OR split_part(translate(d.reason, E'\r', E'\n'), E'\n', 1) = $8)
    AND ($9::text IS NULL OR d.subject = $9)
    AND (NOT $10::boolean OR d.key IS NULL)
  ) IS TRUE AS selected
FROM {schema}.dead_letter AS d
WHERE d.id > $1
  AND ($3::bigint IS NULL OR d.id = $3)
ORDER BY d.id
LIMIT $2
