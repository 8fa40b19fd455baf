-- All about a dead letter of an inbox.
-- $1: its id; $2: whether with the payload.
-- Index: dead_letter_pkey, inbox_pkey. Locking: none.
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
  d.stored_at,
  d.headers::text AS headers,
  CASE WHEN $2 THEN d.payload END AS payload,
  (
    SELECT i.status::text
    FROM {schema}.inbox AS i
    WHERE i.scope = d.scope AND i.tenant = d.tenant AND i.key = d.key
  ) AS key_status
FROM {schema}.dead_letter AS d
WHERE d.id = $1
