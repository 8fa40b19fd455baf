-- Faults of the schema itself, which look like an empty outbox to everybody else; a row for each.
-- $1: the schema; $2: the application_name of relays, or ''.
-- Index: those of the catalogs; a row per lane; message_lane_xact_id, the end of each lane.
-- Locking: none.
WITH schema AS (
  SELECT n.oid, n.nspname FROM pg_namespace AS n WHERE n.nspname = $1
),
prefix AS (
  SELECT coalesce((SELECT i.role_prefix FROM {schema}.installation AS i), '{name}') AS prefix
),
relation AS (
  SELECT c.oid, c.relname, c.relkind, c.relowner, c.relacl FROM pg_class AS c JOIN schema AS s ON s.oid = c.relnamespace
)
SELECT 'lanes' AS fault, ({schema}.lane_count() - count(*))::text || ' of ' || {schema}.lane_count() AS detail
FROM {schema}.lane AS l
HAVING count(*) < {schema}.lane_count()
UNION ALL
SELECT 'cursors', count(*)::text || ' of ' || {schema}.lane_count()
FROM {schema}.lane AS l
WHERE NOT EXISTS (SELECT FROM {schema}.lane_cursor AS c WHERE c.lane = l.lane)
HAVING count(*) > 0
UNION ALL
SELECT 'identity', 'outbox'
WHERE NOT EXISTS (SELECT FROM {schema}.outbox)
UNION ALL
SELECT CASE WHEN h.rival IS NULL AND h.verdict = 'moved' THEN 'moved' ELSE 'copy' END,
  coalesce(h.rival, format('%s, database %s', h.address, h.noted_name))
FROM {schema}.home_here AS h
WHERE h.verdict IN ('copy', 'moved') OR h.rival IS NOT NULL
UNION ALL
SELECT 'sequence-cache', q.seqcache::text
FROM pg_sequence AS q
JOIN relation AS r ON r.oid = q.seqrelid
WHERE r.relname = 'message_id_seq' AND q.seqcache > 1
UNION ALL
-- A function that names another schema than the one it is in: that was renamed.
SELECT 'renamed', min(substring(p.prosrc FROM '"([^"]+)"\.(?:message|lane|cursor|inbox|check_key)'))
FROM pg_proc AS p
JOIN schema AS s ON s.oid = p.pronamespace
WHERE substring(p.prosrc FROM '"([^"]+)"\.(?:message|lane|cursor|inbox|check_key)') <> s.nspname
HAVING count(*) > 0
UNION ALL
SELECT 'subscription', min(u.subname::text)
FROM pg_subscription_rel AS t
JOIN relation AS r ON r.oid = t.srrelid AND r.relname ~ '^message_[0-7]$'
JOIN pg_subscription AS u ON u.oid = t.srsubid
HAVING count(*) > 0
UNION ALL
-- Visible, and of a transaction that this cluster has not begun: neither settled nor due.
SELECT 'foreign-messages', count(*)::text
FROM {schema}.lane_cursor AS l
CROSS JOIN (SELECT c.system_identifier FROM pg_control_system() AS c OFFSET 0) AS here
CROSS JOIN LATERAL (
  SELECT
  FROM {schema}.log AS m
  WHERE m.lane = l.lane
    AND m.xact >= pg_snapshot_xmax(pg_current_snapshot())
    AND m.id > l.floor
    AND m.id <= l.high
  LIMIT 1000
) AS m
WHERE l.reset_until IS NULL
  AND l.system_identifier = here.system_identifier
  AND pg_snapshot_xmax(l.snap) <= pg_snapshot_xmax(pg_current_snapshot())
HAVING count(*) > 0
UNION ALL
SELECT 'notify-queue', round(pg_notification_queue_usage() * 100)::text
WHERE pg_notification_queue_usage() >= 0.5
UNION ALL
SELECT 'synchronous-standby', current_setting('synchronous_standby_names')
WHERE current_setting('synchronous_standby_names') <> ''
  AND current_setting('synchronous_commit') NOT IN ('off', 'local')
  AND NOT pg_is_in_recovery()
  AND NOT EXISTS (SELECT FROM pg_stat_replication)
UNION ALL
-- Roles that may change the tables of the relays by a grant of their own, and are none of ours.
SELECT 'grants', string_agg(DISTINCT format('%s: %s on %s', coalesce(g.rolname, 'PUBLIC'), a.privilege_type, r.relname), ', ')
FROM relation AS r
CROSS JOIN LATERAL aclexplode(r.relacl) AS a
LEFT JOIN pg_roles AS g ON g.oid = a.grantee
WHERE a.grantee <> r.relowner
  AND (r.relname ~ '^message_[0-7]$' OR r.relname IN (
    'segment', 'turn', 'cursor', 'lane', 'parked', 'discarded', 'replay', 'milestone', 'receipt', 'outbox', 'delayed',
    'message_id_seq', 'audit', 'migration'
  ))
  AND a.privilege_type <> 'SELECT'
  AND (g.rolcanlogin OR coalesce(g.rolname, '') !~ '_(producer|relay|consumer|operator)$')
HAVING count(*) > 0
UNION ALL
-- The lock by which relays agree on a leader, in the hands of another program: relays wait
-- for it, and deliver more slowly. Names of other logins' programs are hidden from most roles.
SELECT 'leader', format('pid %s (%s)', k.pid, concat_ws(', ', a.usename, a.application_name))
FROM pg_locks AS k
JOIN pg_stat_activity AS a ON a.pid = k.pid
CROSS JOIN prefix AS x
WHERE k.locktype = 'advisory'
  AND k.granted
  AND k.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
  AND k.objsubid = 1
  AND (k.classid::bigint << 32) | k.objid::bigint = hashtextextended('oncebox leader: {name}', 0)
  AND $2 <> ''
  AND CASE
    WHEN a.application_name IS NOT NULL THEN a.application_name <> $2
    WHEN to_regrole(quote_ident(x.prefix || '_relay')) IS NULL THEN false
    ELSE NOT pg_has_role(a.usesysid, to_regrole(quote_ident(x.prefix || '_relay'))::oid, 'MEMBER')
  END
UNION ALL
SELECT 'maintenance', format('%s, since %s: %s', f.step, date_trunc('second', f.since), f.reason)
FROM {schema}.maintenance_fault AS f
WHERE f.seen_at > clock_timestamp() - interval '15 minutes'
UNION ALL
-- The sequence was restarted by hand, or it did not come with the rows.
SELECT 'turn-sequence', format('turn %s, and the segments are at %s',
    coalesce(pg_sequence_last_value('{schema}.turn')::text, 'without a value'), max(s.turn))
FROM {schema}.segment AS s
HAVING coalesce(pg_sequence_last_value('{schema}.turn'), -1) < max(s.turn)
UNION ALL
-- A turn ends after a sixth of the retention time.
SELECT 'turn', format('message_%s takes messages since %s; %s', s.number, date_trunc('second', s.began_at), CASE
    WHEN n.is_empty THEN 'a transaction that has enqueued is open, or somebody vacuums it'
    WHEN n.is_live THEN format('message_%s, the next one, holds messages that are due', n.number)
    ELSE format('message_%s, the next one, is not empty yet: somebody reads it, or is still within its retention', n.number)
  END)
FROM {schema}.segment AS s
JOIN {schema}.segment AS n ON n.number = (s.number + 1) % 8
CROSS JOIN (
  SELECT min(r.retention_seconds) AS seconds
  FROM {schema}.relay AS r
  WHERE r.seen_at BETWEEN clock_timestamp() - interval '3 minutes' AND clock_timestamp()
) AS kept
WHERE s.number = pg_sequence_last_value('{schema}.turn') % 8
  AND kept.seconds IS NOT NULL
  AND s.began_at < clock_timestamp() - make_interval(secs => least(greatest(kept.seconds / 2, 60), 1e9))
