-- Whether others wait in a lane behind what holds it up: messages of another ordering key, or of
-- other subjects. Looks at the next ones and at the newest, not at all.
-- $1: the lane, claimed by this transaction; $2: after this id; $3: the ordering key that holds it
-- up, or NULL; $4: the subjects that do, or NULL.
-- Index: message_pkey, in both directions. Locking: none; message is append-only.
SELECT EXISTS (
  SELECT
  FROM (
    (
      SELECT n.ordering_key, n.subject
      FROM {schema}.message AS n
      WHERE n.lane = $1 AND n.id > $2
      ORDER BY n.id
      LIMIT 10000
    )
    UNION ALL
    (
      SELECT n.ordering_key, n.subject
      FROM {schema}.message AS n
      WHERE n.lane = $1 AND n.id > $2
      ORDER BY n.id DESC
      LIMIT 1000
    )
  ) AS m
  WHERE $3::text IS NOT NULL AND m.ordering_key IS DISTINCT FROM $3
    OR m.subject <> ALL ($4::text[])
) AS others_wait
