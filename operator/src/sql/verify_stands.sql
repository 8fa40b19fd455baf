-- Where the lanes stand, with the identity of the outbox. Of a lane whose transaction ids come from
-- another cluster, only the messages up to its floor are known to be settled.
-- adopted_at: since when this outbox is one of its own, if it was a copy; the other one's relays
-- sent the messages from before.
-- Index: cursor_pkey. Locking: none.
SELECT
  c.lane,
  c.floor,
  CASE WHEN s.is_known THEN c.high ELSE c.floor END AS high,
  CASE WHEN s.is_known THEN c.snap::text END AS snap,
  o.identity AS outbox,
  (
    SELECT max(a.happened_at)
    FROM {schema}.audit AS a
    WHERE a.action = 'adopt' AND a.reason LIKE 'a copy of %'
  ) AS adopted_at
FROM {schema}.lane_cursor AS c
CROSS JOIN {schema}.outbox AS o
CROSS JOIN (SELECT h.system_identifier FROM pg_control_system() AS h OFFSET 0) AS here
CROSS JOIN LATERAL (
  SELECT
    c.reset_until IS NULL
      AND c.system_identifier = here.system_identifier
      AND pg_snapshot_xmax(c.snap) <= pg_snapshot_xmax(pg_current_snapshot()) AS is_known
) AS s
ORDER BY c.lane
