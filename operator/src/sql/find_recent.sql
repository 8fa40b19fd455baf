-- Messages among the newest that have this ordering key, subject or trace, the newest first.
-- $1: the text that is looked for; $2: messages to look at, at most, an equal share of each lane;
-- $3: messages to return.
-- Index: message_pkey, backwards from the end of each lane. Locking: none.
SELECT m.key, m.subject, m.ordering_key, m.created_at
FROM {schema}.lane AS l
CROSS JOIN LATERAL (
  SELECT n.key, n.subject, n.ordering_key, n.created_at, n.headers
  FROM {schema}.log AS n
  WHERE n.lane = l.lane
  ORDER BY n.id DESC
  LIMIT (SELECT greatest($2::bigint / count(*), 1) FROM {schema}.lane)
) AS m
WHERE m.ordering_key = $1 OR m.subject = $1 OR split_part(m.headers ->> 'traceparent', '-', 2) = lower($1)
ORDER BY m.created_at DESC
LIMIT $3
