-- Look at dead messages in the order of their ids, and say which of them are selected.
-- $1: lanes; $2: after this id; $3: messages to look at, at most; $4: a key; $5: regular expression of a subject;
-- $6: part of the reason, in lower case; $7: an ordering key; NULL selects all.
-- Index: parked_dead, message_pkey. Locking: none: whoever acts on a message asks again under the lane's lock.
WITH seen AS MATERIALIZED (
  SELECT p.*
  FROM unnest($1::smallint[]) AS l (lane)
  CROSS JOIN LATERAL (
    SELECT q.lane, q.id, q.ordering_key, q.attempts, q.dead_at, q.error, q.replay
    FROM {schema}.parked AS q
    WHERE q.lane = l.lane AND q.dead_at IS NOT NULL AND q.id > $2
    ORDER BY q.id
    LIMIT $3
  ) AS p
  ORDER BY p.id
  LIMIT $3
)
SELECT
  s.lane,
  s.id,
  m.key,
  m.subject,
  s.ordering_key,
  s.attempts,
  s.dead_at,
  s.error,
  s.replay,
  m.created_at,
  octet_length(m.payload)::bigint AS payload_bytes,
  ($4::text IS NULL OR m.key = $4)
    AND ($5::text IS NULL OR m.subject COLLATE "C" ~ $5)
    AND ($6::text IS NULL OR strpos(lower(s.error), $6) > 0)
    AND ($7::text IS NULL OR s.ordering_key = $7) IS TRUE AS selected
FROM seen AS s
JOIN {schema}.message AS m ON m.lane = s.lane AND m.id = s.id
ORDER BY s.id
