-- Subjects of the newest messages that were not discarded, with how many of those looked at have
-- each, and the size of the largest.
-- $1: messages to look at, at most, an equal share of each lane; $2: subjects to return.
-- Index: message_pkey, backwards from the end of each lane. Locking: none.
SELECT
  m.subject,
  count(*) AS messages,
  max(m.bytes)::bigint AS bytes_max
FROM {schema}.lane AS l
CROSS JOIN LATERAL (
  SELECT
    n.subject,
    octet_length(n.payload) + octet_length(n.headers::text) + octet_length(n.key) AS bytes
  FROM {schema}.log AS n
  WHERE n.lane = l.lane
    AND NOT EXISTS (SELECT FROM {schema}.discarded AS d WHERE d.lane = n.lane AND d.id = n.id)
  ORDER BY n.id DESC
  LIMIT (SELECT greatest($1::bigint / count(*), 1) FROM {schema}.lane)
) AS m
GROUP BY m.subject
ORDER BY count(*) DESC, m.subject
LIMIT $2
