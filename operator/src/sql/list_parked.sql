-- Look at messages and replays that are set aside, in the order of ids, and say which of them are
-- selected.
-- $1: lanes; $2: after this id; $3: rows to look at, at most; $4: a key; $5: regular expression of
--   a subject;
-- $6: part of the reason, in lower case; $7: an ordering key; $8: dead, parked (to be tried again,
-- or waiting) or replay (still to be sent); $9: the name of a request for replays. NULL selects
-- all, but not in $8; $10: an id; $11: the first line of the reason; $12: a subject.
-- asked_at: when an operator had a parked one tried last. Index: parked_dead for dead ones, else
-- parked_pkey; replay_pkey, audit_key. Locking: none:
-- give_up.sql and retry.sql look again under the lane's lock.
WITH seen AS MATERIALIZED (
  SELECT p.*
  FROM unnest($1::smallint[]) AS l (lane)
  CROSS JOIN LATERAL (
    (
      SELECT q.*
      FROM {schema}.parked AS q
      WHERE $8::text = 'dead' AND q.lane = l.lane AND q.dead_at IS NOT NULL AND q.id > $2
      ORDER BY q.id
      LIMIT $3
    )
    UNION ALL
    (
      SELECT q.*
      FROM {schema}.parked AS q
      WHERE $8::text <> 'dead' AND q.lane = l.lane AND q.id > $2
      ORDER BY q.id
      LIMIT $3
    )
  ) AS p
  ORDER BY p.id
  LIMIT $3
)
SELECT
  s.lane,
  s.id,
  s.key,
  s.subject,
  s.ordering_key,
  s.attempts,
  -- One that waits with others is not tried for now: see release_waiting.sql.
  CASE
    WHEN s.waits_for IS NULL OR s.next_attempt_at < clock_timestamp() + interval '10 minutes' THEN s.next_attempt_at
  END AS next_attempt_at,
  s.next_attempt_at IS NOT NULL AS is_first,
  s.dead_at,
  s.error,
  s.replay,
  s.parked_at,
  CASE $8::text
    WHEN 'parked' THEN (
      SELECT max(a.happened_at)
      FROM {schema}.audit AS a
      WHERE a.key = s.key AND a.message_id = s.id AND a.action = 'retry' AND a.scope IS NULL
    )
  END AS asked_at,
  s.created_at,
  octet_length(s.payload)::bigint AS payload_bytes,
  CASE $8::text
    WHEN 'dead' THEN s.dead_at IS NOT NULL
    WHEN 'parked' THEN s.dead_at IS NULL AND s.replay = 0
    ELSE s.dead_at IS NULL AND s.replay > 0
  END
    AND ($4::text IS NULL OR s.key = $4)
    AND ($5::text IS NULL OR s.subject COLLATE "C" ~ $5)
    AND ($6::text IS NULL OR strpos(lower(s.error), $6) > 0)
    AND ($7::text IS NULL OR s.ordering_key = $7) IS TRUE
    AND ($10::bigint IS NULL OR s.id = $10)
    AND ($11::text IS NULL OR split_part(translate(s.error, E'\r', E'\n'), E'\n', 1) = $11)
    AND ($12::text IS NULL OR s.subject = $12)
    AND ($9::text IS NULL OR EXISTS (
      SELECT FROM {schema}.replay AS r
      WHERE r.lane = s.lane AND r.id = s.id AND r.request = $9
      OFFSET 0
    )) AS selected
FROM seen AS s
ORDER BY s.id
