-- A message with its headers, and its payload if asked for; also a delayed one. Of several with
-- this key the newest comes first.
-- $1: its key; $2: whether with the payload; $3: bytes of the payload at most.
-- Index: message_key_unique, delayed_key_unique. Locking: none.
SELECT
  m.id,
  m.key,
  m.subject,
  m.ordering_key,
  m.created_at,
  {schema}.headers_text(m.headers) AS headers,
  octet_length(m.payload)::bigint AS payload_bytes,
  CASE WHEN $2 THEN substring(m.payload FROM 1 FOR $3::integer) END AS payload
FROM {schema}.message AS m
WHERE m.key = $1::text AND m.lane >= 0
UNION ALL
SELECT
  d.id,
  d.key,
  d.subject,
  d.ordering_key,
  d.created_at,
  {schema}.headers_text(d.headers) AS headers,
  octet_length(d.payload)::bigint AS payload_bytes,
  CASE WHEN $2 THEN substring(d.payload FROM 1 FOR $3::integer) END AS payload
FROM {schema}.delayed AS d
WHERE d.key = $1::text
ORDER BY id DESC
