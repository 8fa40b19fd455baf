-- Why messages are set aside to be tried again, by the first line of the reason, as --reason-is
-- takes it, and subject, with a key of each; not those that only wait for
-- others or were asked for again.
-- $1: messages to look at, at most, in all lanes, an equal share of each; $2: groups to return.
-- Index: parked_due. Locking: none.
WITH looked_at AS MATERIALIZED (
  SELECT p.*
  FROM {schema}.lane AS l
  CROSS JOIN LATERAL (
    SELECT q.key, q.subject, split_part(translate(q.error, E'\r', E'\n'), E'\n', 1) AS error, q.cause, q.parked_at
    FROM {schema}.parked AS q
    WHERE q.lane = l.lane AND q.next_attempt_at IS NOT NULL
    ORDER BY q.next_attempt_at
    LIMIT (SELECT greatest($1::bigint / count(*), 1) FROM {schema}.lane)
  ) AS p
)
SELECT h.error, h.cause, h.subject, count(*) AS messages, min(h.parked_at) AS since, min(h.key) AS key
FROM looked_at AS h
WHERE h.cause IS NULL OR h.cause NOT IN ('behind', 'replay')
GROUP BY h.error, h.cause, h.subject
ORDER BY count(*) DESC, h.subject, h.error
LIMIT $2
