-- Whether others wait in a lane for the messages that hold it up: messages of another ordering key,
-- of other subjects, or smaller ones. Looks at the next messages of the lane and at its newest, not
-- at all of them.
-- $1: the lane, claimed by this transaction; $2: after this id; $3: the ordering key that holds it
-- up, or NULL; $4: the subjects that do, or NULL; $5: for smaller ones, their bytes, or NULL.
-- Index: message_pkey, in both directions. Locking: none; message is append-only.
SELECT EXISTS (
  SELECT
  FROM (
    (
      SELECT n.ordering_key, n.subject, octet_length(n.payload) AS bytes
      FROM {schema}.log AS n
      WHERE n.lane = $1 AND n.id > $2
      ORDER BY n.id
      LIMIT 10000
    )
    UNION ALL
    (
      SELECT n.ordering_key, n.subject, octet_length(n.payload) AS bytes
      FROM {schema}.log AS n
      WHERE n.lane = $1 AND n.id > $2
      ORDER BY n.id DESC
      LIMIT 1000
    )
  ) AS m
  WHERE $3::text IS NOT NULL AND m.ordering_key IS DISTINCT FROM $3
    OR m.subject <> ALL ($4::text[])
    OR m.bytes < $5::bigint
) AS others_wait
