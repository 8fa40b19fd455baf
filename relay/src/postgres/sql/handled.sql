-- How long after their enqueuing messages were handled in an inbox of this database, of those that
-- were: how many, and the seconds that half of them took at most, and 99 in 100.
-- $1, $2: keys, and when they were enqueued; $3: inboxes to look at, at most.
-- Index: inbox_pkey, from one scope and tenant to the next, then each key in each. Locking: none.
SELECT
  count(*) AS handled,
  percentile_disc(ARRAY[0.5, 0.99]) WITHIN GROUP (ORDER BY f.seconds) AS seconds
FROM (
  SELECT max((extract(epoch FROM i.created_at) - extract(epoch FROM m.created_at))::float8) AS seconds
  FROM unnest($1::text[], $2::timestamptz[]) WITH ORDINALITY AS m (key, created_at, number)
  CROSS JOIN {schema}.inbox_places($3::integer) AS p
  CROSS JOIN LATERAL (
    SELECT i.created_at
    FROM {schema}.inbox AS i
    WHERE i.scope = p.scope AND i.tenant = p.tenant AND i.key = m.key
    OFFSET 0
  ) AS i
  GROUP BY m.number
) AS f
