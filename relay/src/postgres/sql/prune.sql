-- Delete messages that were settled longer ago than the retention time, from the low end of all
-- lanes at once, some at a time: neighbours in the table have neighbouring ids and any lane, so a
-- page is visited once and not once for each lane.
-- $1: lanes; $2: the milestone of each, from milestones.sql; $3: after this id; $4: how far from
-- the first id found; $5: messages to look at, at most; $6: bytes of payload to delete, at most
-- (one message always goes); $7: only count. Every message that a milestone calls settled was
-- settled when the milestone was reached, or before: a restored row with id <= floor, or one with
-- id <= high that is visible in snap, as the essay in cursor.rs explains. So a message whose
-- transaction was still open then stays, and one that is parked, dead, or to be replayed. A row
-- below the floor that was written here after the reset is not a restored one and was never sent:
-- it stays, and is counted, until an operator has it replayed. Returns where to go on (NULL:
-- nothing is left), how many messages were looked at, whether that was cut short, how many go, and
-- of those that were written below the floor how many stay and the last one's id.
-- Index: milestone_pkey, reset_pkey, message_pkey, parked_pkey, discarded_pkey, replay_pkey.
-- delete_settled() deletes, and looks again: it keeps each message that no milestone calls settled,
-- even if this statement names it.
-- Locking: the maintenance row is locked by claim_maintenance.sql; nobody else ever locks a settled
-- message, and no lane is locked.
WITH reached AS MATERIALIZED (
  SELECT s.lane, s.floor, s.snap, greatest(s.high, s.floor) AS last_id, x.snap AS reset_snap
  FROM unnest($1::smallint[], $2::bigint[]) AS w (lane, number)
  JOIN {schema}.milestone AS s ON s.lane = w.lane AND s.number = w.number
  CROSS JOIN (SELECT c.system_identifier FROM pg_control_system() AS c OFFSET 0) AS here
  LEFT JOIN {schema}.reset AS x ON x.lane = s.lane
  WHERE s.system_identifier = here.system_identifier
    AND pg_snapshot_xmax(s.snap) <= pg_snapshot_xmax(pg_current_snapshot())
),
span AS MATERIALIZED (
  SELECT min(f.id) AS first_id, min(f.id) + $4 - 1 AS last_id
  FROM reached AS r
  CROSS JOIN LATERAL (
    SELECT n.id
    FROM {schema}.message AS n
    WHERE n.lane = r.lane AND n.id > $3 AND n.id <= r.last_id
    ORDER BY n.id
    LIMIT 1
  ) AS f
),
looked_at AS MATERIALIZED (
  SELECT m.*, sum(m.bytes) OVER (ORDER BY m.id, m.lane ROWS UNBOUNDED PRECEDING) - m.bytes AS bytes_before
  FROM (
    SELECT n.*
    FROM span AS p
    CROSS JOIN reached AS r
    CROSS JOIN LATERAL (
      SELECT
        o.lane,
        o.id,
        octet_length(o.payload) AS bytes,
        CASE
          WHEN o.id > r.floor THEN pg_visible_in_snapshot(o.xact, r.snap)
          ELSE true
        END AS settled,
        o.id <= r.floor AND r.reset_snap IS NOT NULL AND NOT (
          {schema}.written_by(o.xmin) < o.xact OR pg_visible_in_snapshot({schema}.written_by(o.xmin), r.reset_snap)
        ) AS strange
      FROM {schema}.message AS o
      WHERE o.lane = r.lane AND o.id >= p.first_id AND o.id <= p.last_id AND o.id <= r.last_id
      ORDER BY o.id
      OFFSET 0
    ) AS n
    ORDER BY n.id, n.lane
    LIMIT $5
  ) AS m
),
seen AS MATERIALIZED (
  SELECT l.lane, l.id, l.settled, l.strange AND NOT EXISTS (
    SELECT FROM {schema}.replay AS r
    WHERE r.lane = l.lane AND r.id = l.id
    OFFSET 0
  ) AS unsent
  FROM looked_at AS l
  WHERE l.bytes_before < $6
),
free AS MATERIALIZED (
  SELECT s.lane, s.id, s.unsent
  FROM seen AS s
  WHERE s.settled
    AND NOT EXISTS (
      SELECT FROM {schema}.parked AS p
      WHERE p.lane = s.lane AND p.id = s.id
      OFFSET 0
    )
),
old AS MATERIALIZED (
  SELECT f.lane, f.id FROM free AS f WHERE NOT f.unsent
),
deleted AS MATERIALIZED (
  SELECT CASE
      WHEN $7 THEN count(*)
      ELSE {schema}.delete_settled(array_agg(o.lane), array_agg(o.id))
    END AS messages
  FROM old AS o
),
counted AS (
  SELECT count(*) AS looked_at, count(*) >= $5 OR count(*) > (SELECT count(*) FROM seen AS s) AS is_cut FROM looked_at AS l
)
SELECT
  CASE
    WHEN c.is_cut THEN (SELECT max(s.id) FROM seen AS s)
    WHEN p.last_id < (SELECT max(r.last_id) FROM reached AS r) THEN p.last_id
  END AS next,
  c.looked_at,
  c.is_cut,
  (SELECT coalesce(d.messages, 0) FROM deleted AS d) AS pruned,
  (SELECT count(*) FROM free AS f WHERE f.unsent) AS unsent,
  (SELECT max(f.id) FROM free AS f WHERE f.unsent) AS unsent_id
FROM counted AS c
CROSS JOIN span AS p
