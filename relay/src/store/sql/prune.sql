-- Delete messages of a lane that were settled longer ago than the retention time, from the low end, some at a time.
-- $1: the lane; $2: after this id; $3: retention time in seconds; $4: messages to look at, at most; $5: bytes of payload to
-- delete, at most (one message always goes); $6: the milestone that is finished already, or 0; $7: only count.
-- What a milestone says was settled, was settled when it was reached, or before: id <= floor, or id <= high and visible
-- in snap, as the essay in cursor.rs explains. So a message whose transaction was still open then stays, and one that is
-- parked, dead, or to be replayed.
-- Returns the milestone used (NULL: nothing is old enough), the last id looked at, how many that were, how many go.
-- Index: milestone_pkey, message_pkey, parked_pkey, discarded_pkey, replay_pkey. Locking: the maintenance row is locked
-- by claim_maintenance.sql; nobody else ever locks a settled message, and no lane is locked.
WITH reached AS MATERIALIZED (
  SELECT s.number, s.floor, s.high, s.snap
  FROM {schema}.milestone AS s
  CROSS JOIN (SELECT c.system_identifier FROM pg_control_system() AS c OFFSET 0) AS here
  WHERE s.lane = $1
    AND s.number > $6
    AND s.reached_at <= clock_timestamp() - make_interval(secs => $3)
    AND s.system_identifier = here.system_identifier
    AND pg_snapshot_xmax(s.snap) <= pg_snapshot_xmax(pg_current_snapshot())
  ORDER BY s.number DESC
  LIMIT 1
),
looked_at AS MATERIALIZED (
  SELECT
    m.id,
    m.xact,
    sum(m.bytes) OVER (ORDER BY m.id ROWS UNBOUNDED PRECEDING) - m.bytes AS bytes_before
  FROM reached AS r
  CROSS JOIN LATERAL (
    SELECT n.id, n.xact, octet_length(n.payload) AS bytes
    FROM {schema}.message AS n
    WHERE n.lane = $1 AND n.id > $2 AND n.id <= greatest(r.high, r.floor)
    ORDER BY n.id
    LIMIT $4
  ) AS m
),
seen AS MATERIALIZED (
  SELECT l.id, l.xact
  FROM looked_at AS l
  WHERE l.bytes_before < $5
),
old AS MATERIALIZED (
  SELECT s.id
  FROM seen AS s
  CROSS JOIN reached AS r
  WHERE (s.id <= r.floor OR pg_visible_in_snapshot(s.xact, r.snap))
    AND NOT EXISTS (
      SELECT FROM {schema}.parked AS p
      WHERE p.lane = $1 AND p.id = s.id
      OFFSET 0
    )
),
deleted AS (
  DELETE FROM {schema}.message AS m
  USING old AS o
  WHERE NOT $7 AND m.lane = $1 AND m.id = o.id
),
forgotten AS (
  DELETE FROM {schema}.discarded AS d
  USING old AS o
  WHERE NOT $7 AND d.lane = $1 AND d.id = o.id
),
unnumbered AS (
  DELETE FROM {schema}.replay AS r
  USING old AS o
  WHERE NOT $7 AND r.lane = $1 AND r.id = o.id
)
SELECT
  (SELECT r.number FROM reached AS r) AS number,
  (SELECT max(s.id) FROM seen AS s) AS last_id,
  (SELECT count(*) FROM seen AS s) < (SELECT count(*) FROM looked_at AS l)
    OR (SELECT count(*) FROM looked_at AS l) >= $4 AS is_full,
  (SELECT count(*) FROM old AS o) AS pruned
