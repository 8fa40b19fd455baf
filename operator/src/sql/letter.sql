-- All about a dead letter of an inbox.
-- $1: its id; $2: bytes of the payload at most; NULL: none of it.
-- Index: dead_letter_pkey, inbox_pkey, inbox_behind_line. Locking: none.
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
  d.stored_at,
  d.headers::text AS headers,
  substring(d.payload FROM 1 FOR $2::integer) AS payload,
  (
    SELECT i.status::text
    FROM {schema}.inbox AS i
    WHERE i.scope = d.scope AND i.tenant = d.tenant AND i.key = d.key
  ) AS key_status
FROM {schema}.dead_letter AS d
WHERE d.id = $1
