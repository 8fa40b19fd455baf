-- The events between two times, the newest first: relays that took the lead and their versions,
-- actions of operators, losses of streams. Actions of one
-- kind and person in one minute are one mark.
-- $1: since; $2: until; $3: marks at most.
-- Index: history_pkey; audit_pkey, the newest 10,000; none for losses, of few rows. Locking: none.
SELECT m.at, m.kind, m.what
FROM (
  SELECT l.at, 'leader' AS kind, format('relay %s of version %s leads', l.relay, l.version) AS what
  FROM (
    SELECT h.at, h.relay, h.version, lag(h.relay) OVER by_time AS relay_before, lag(h.version) OVER by_time AS version_before
    FROM {schema}.history AS h
    WHERE h.leads AND h.at >= $1::timestamptz AND h.at < $2::timestamptz
    WINDOW by_time AS (ORDER BY h.at)
  ) AS l
  WHERE (l.relay, l.version) IS DISTINCT FROM (l.relay_before, l.version_before)
  UNION ALL
  SELECT
    min(a.happened_at),
    'action',
    concat_ws(' ', a.action, CASE WHEN sum(a.messages) > 1 THEN sum(a.messages) || ' times' END, min(a.key), a.scope,
      'by ' || coalesce(a.operator, a.database_user))
  FROM (SELECT x.* FROM {schema}.audit AS x ORDER BY x.id DESC LIMIT 10000) AS a
  WHERE a.happened_at >= $1::timestamptz AND a.happened_at < $2::timestamptz
  GROUP BY date_trunc('minute', a.happened_at), a.action, a.scope, coalesce(a.operator, a.database_user)
  UNION ALL
  SELECT min(s.found_at), 'loss', format('stream %s had lost messages (%s)', s.stream, s.kind)
  FROM {schema}.loss AS s
  WHERE s.found_at >= $1::timestamptz AND s.found_at < $2::timestamptz
  GROUP BY s.stream, s.kind, date_trunc('minute', s.found_at)
) AS m
ORDER BY m.at DESC, m.kind, m.what
LIMIT $3
