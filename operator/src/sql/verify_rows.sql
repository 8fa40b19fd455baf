-- Read messages of the log by their keys, to be compared with the messages of a stream; of a
-- payload its hash, so that a thousand large ones do not have to fit into memory.
-- $1: the keys. Index: message_key_unique. Locking: none.
SELECT
  m.id,
  m.key,
  m.subject,
  m.ordering_key,
  CASE WHEN m.headers <> '{}' THEN {schema}.headers_text(m.headers) END AS headers,
  m.created_at,
  sha256(m.payload) AS payload
FROM {schema}.message AS m
WHERE m.key = ANY ($1::text[]) AND m.lane >= 0
