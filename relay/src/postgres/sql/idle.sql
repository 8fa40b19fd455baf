-- Look whether this outbox has work. Returns where its ids stand, which moves with each message;
-- whether a transaction that has enqueued is open, prepared or not; in how many seconds the next
-- message or pause has its time (NULL: none has one), which is now while a canary is running; and
-- the name of the database.
-- Index: parked_due and delayed_due, their first entries; few rows of pause. Locking: none.
SELECT
  i.stood_at,
  i.needed,
  EXISTS (
    SELECT
    FROM pg_locks AS k
    JOIN pg_database AS d ON d.oid = k.database AND d.datname = current_database()
    WHERE k.locktype = 'relation'
      AND k.mode = 'RowExclusiveLock'
      AND k.relation = ANY (ARRAY['{schema}.message_0', '{schema}.message_1', '{schema}.message_2', '{schema}.message_3', '{schema}.message_4', '{schema}.message_5', '{schema}.message_6', '{schema}.message_7']::regclass[])
  ) AS is_enqueuing,
  (extract(epoch FROM least(
    (
      SELECT min(p.next_attempt_at)
      FROM {schema}.lane AS l
      CROSS JOIN LATERAL (
        SELECT q.next_attempt_at
        FROM {schema}.parked AS q
        WHERE q.lane = l.lane AND q.next_attempt_at IS NOT NULL
        ORDER BY q.next_attempt_at
        LIMIT 1
      ) AS p
    ),
    (SELECT d.not_before FROM {schema}.delayed AS d ORDER BY d.not_before LIMIT 1),
    (SELECT min(h.ends_at) FROM {schema}.pause AS h WHERE h.ends_at > clock_timestamp() AND isfinite(h.ends_at)),
    (SELECT clock_timestamp() FROM {schema}.canary AS k WHERE k.state = 'running' LIMIT 1)
  )) - extract(epoch FROM clock_timestamp()))::float8 AS next_seconds,
  current_database()::text AS database
FROM {schema}.message_ids AS i
