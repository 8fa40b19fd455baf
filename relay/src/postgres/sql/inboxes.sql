-- The inboxes of this database: how many messages of each are failing, dead and snoozed, for how
-- long the oldest failing one has been in its stream, and why the newest one failed. A message is
-- failing when an attempt has failed and its key has not ended. Each number is counted to 1,000
-- where there is one inbox, else to an equal share of that; is_capped says that one of them may be
-- higher. The first inboxes by name have a row each; the others have one together, with scope NULL.
-- $1: inboxes to look at, 1,000 at most; $2: rows with a scope, at most. Index: inbox_scope_pkey,
-- inbox_attempt_failed backwards, then inbox_pkey for each entry; dead_letter_once and
-- inbox_snooze_due without their tables where these are vacuumed; each ORDER BY keeps the planner
-- from another way. Locking: none.
WITH named AS MATERIALIZED (
  SELECT n.scope, row_number() OVER (ORDER BY n.scope) AS place, 1000 / count(*) OVER () AS most
  FROM (
    SELECT s.scope
    FROM {schema}.inbox_scope AS s
    WHERE s.kind = 'consumer'
    ORDER BY s.scope
    LIMIT $1
  ) AS n
),
counted AS MATERIALIZED (
  SELECT
    CASE WHEN n.place <= $2 THEN n.scope END AS scope,
    failing.messages AS failing,
    failing.oldest_at,
    failing.newest_at,
    failing.reason,
    dead.letters AS dead,
    snoozed.messages AS snoozed,
    failing.looked_at >= n.most OR dead.letters >= n.most OR snoozed.messages >= n.most AS is_capped
  FROM named AS n
  CROSS JOIN LATERAL (
    SELECT
      -- A message and its copies are one.
      count(DISTINCT (f.tenant, f.key)) FILTER (WHERE f.goes_on) AS messages,
      count(*) AS looked_at,
      -- A copy in a stream names the moment at which the stream stored it, in microseconds.
      min(CASE
        WHEN f.message ~ '^\S+ \d+ \d{1,17}$' THEN to_timestamp(split_part(f.message, ' ', 3)::float8 / 1000000)
        ELSE f.failed_at
      END) FILTER (WHERE f.goes_on) AS oldest_at,
      max(f.failed_at) FILTER (WHERE f.goes_on) AS newest_at,
      (array_agg(f.reason ORDER BY f.failed_at DESC) FILTER (WHERE f.goes_on))[1] AS reason
    FROM (
      SELECT
        a.tenant,
        a.key,
        a.message,
        a.failed_at,
        a.reason,
        NOT EXISTS (
          SELECT FROM {schema}.inbox AS i WHERE i.scope = n.scope AND i.tenant = a.tenant AND i.key = a.key OFFSET 0
        ) AS goes_on
      FROM {schema}.inbox_attempt AS a
      WHERE a.scope = n.scope AND a.failed_at IS NOT NULL
      ORDER BY a.failed_at DESC
      LIMIT n.most
    ) AS f
  ) AS failing
  CROSS JOIN LATERAL (
    SELECT count(*) AS letters
    FROM (
      SELECT
      FROM {schema}.dead_letter AS d
      WHERE d.scope = n.scope
      ORDER BY d.stream
      LIMIT n.most
    ) AS d
  ) AS dead
  CROSS JOIN LATERAL (
    SELECT count(*) AS messages
    FROM (
      SELECT
      FROM {schema}.inbox_snooze AS z
      WHERE z.scope = n.scope AND z.due_at > statement_timestamp()
      ORDER BY z.due_at
      LIMIT n.most
    ) AS z
  ) AS snoozed
)
SELECT
  c.scope,
  sum(c.failing)::bigint AS failing,
  sum(c.dead)::bigint AS dead,
  sum(c.snoozed)::bigint AS snoozed,
  bool_or(c.is_capped) AS is_capped,
  coalesce(extract(epoch FROM statement_timestamp()) - extract(epoch FROM min(c.oldest_at)), 0)::float8 AS failing_oldest_seconds,
  (array_agg(c.reason ORDER BY c.newest_at DESC NULLS LAST))[1] AS reason
FROM counted AS c
GROUP BY c.scope
ORDER BY c.scope
