-- Look at sagas in the order of their ids, or from the newest on, those that have not finished
-- unless others are meant.
-- $1: after this id, or before it; $2: sagas to look at, at most; $3: a key, which alone is looked
-- for then; $4: a type; $5: a state; $6: whether finished ones are meant; $7: whether the newest
-- come first.
-- Index: saga_key_unique; saga_open, which holds unfinished sagas (each OFFSET 0 keeps the planner
-- from walking all the finished ones in the order of ids); saga_pkey; saga_step_pkey.
-- Locking: none; the statements that change a saga look again.
WITH seen AS MATERIALIZED (
  (
    SELECT s.id, s.type, s.business_id, s.key, s.version, s.state, s.direction, s.reason, s.created_at, s.changed_at,
           s.deadline_at, s.finished_at
    FROM {schema}.saga AS s
    WHERE $3::text IS NOT NULL AND s.key = $3::text
  )
  UNION ALL
  (
    SELECT o.id, o.type, o.business_id, o.key, o.version, o.state, o.direction, o.reason, o.created_at, o.changed_at,
           o.deadline_at, o.finished_at
    FROM (
      SELECT s.id, s.type, s.business_id, s.key, s.version, s.state, s.direction, s.reason, s.created_at, s.changed_at,
             s.deadline_at, s.finished_at
      FROM {schema}.saga AS s
      WHERE $3::text IS NULL AND NOT $6 AND s.finished_at IS NULL
      OFFSET 0
    ) AS o
    WHERE CASE WHEN $7 THEN o.id < $1 ELSE o.id > $1 END
    ORDER BY CASE WHEN $7 THEN -o.id ELSE o.id END
    LIMIT $2
  )
  UNION ALL
  (
    SELECT s.id, s.type, s.business_id, s.key, s.version, s.state, s.direction, s.reason, s.created_at, s.changed_at,
           s.deadline_at, s.finished_at
    FROM {schema}.saga AS s
    WHERE $3::text IS NULL AND $6 AND NOT $7 AND s.id > $1
    ORDER BY s.id
    LIMIT $2
  )
  UNION ALL
  (
    SELECT s.id, s.type, s.business_id, s.key, s.version, s.state, s.direction, s.reason, s.created_at, s.changed_at,
           s.deadline_at, s.finished_at
    FROM {schema}.saga AS s
    WHERE $3::text IS NULL AND $6 AND $7 AND s.id < $1
    ORDER BY s.id DESC
    LIMIT $2
  )
)
SELECT
  n.id,
  n.type::text AS type,
  n.business_id::text AS business_id,
  n.key::text AS key,
  n.version,
  n.state,
  n.direction,
  n.reason,
  n.created_at,
  -- A moment may be infinite.
  floor(1000 * least(greatest(extract(epoch FROM clock_timestamp()) - extract(epoch FROM n.created_at), -1e12), 1e12))::bigint AS age_ms,
  n.changed_at,
  n.deadline_at,
  n.finished_at,
  ARRAY(
    SELECT t.step::text
    FROM {schema}.saga_step AS t
    WHERE t.saga_id = n.id AND n.state = 'stuck'
      AND CASE n.direction WHEN 'forward' THEN t.state IN ('rejected', 'failed') ELSE t.state = 'undo-failed' END
    ORDER BY t.step
  ) AS waiting,
  ARRAY(
    SELECT t.step::text
    FROM {schema}.saga_step AS t
    WHERE t.saga_id = n.id AND n.finished_at IS NULL
      AND (t.state IN ('sent', 'undoing') OR n.state = 'stuck'
        AND CASE n.direction WHEN 'forward' THEN t.state IN ('rejected', 'failed') ELSE t.state = 'undo-failed' END)
    ORDER BY t.step
  ) AS current,
  ($4::text IS NULL OR n.type = $4::text) AND ($5::text IS NULL OR n.state = $5::text) AS selected
FROM seen AS n
ORDER BY CASE WHEN $7 THEN -n.id ELSE n.id END
