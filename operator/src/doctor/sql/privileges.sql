-- The privileges that a relay needs and its role lacks, on objects that exist: the grants of
-- schema/migrations/grants.sql. The roles are those of the relays that are connected, and this one,
-- unless it is an operator's. A doctor's session has the name of the relays' ones, with "operator".
-- $1: the schema; $2: the beginning of the names of the roles that were made for it.
-- Index: those of the catalogs. Locking: none.
WITH role (name) AS (
  SELECT r.rolname
  FROM pg_roles AS r
  WHERE r.rolname IN (
    SELECT a.usename
    FROM pg_stat_activity AS a
    WHERE a.datname = current_database()
      AND a.application_name = CASE current_setting('application_name')
        WHEN 'oncebox operator' THEN 'oncebox relay'
        ELSE regexp_replace(current_setting('application_name'), ' operator$', '')
      END
  )
  UNION
  SELECT current_user
  WHERE NOT EXISTS (
    SELECT
    FROM pg_roles AS o
    WHERE o.rolname = $2 || '_operator'
      AND pg_has_role(o.oid, 'USAGE')
      AND NOT EXISTS (SELECT FROM pg_roles AS l WHERE l.rolname = $2 || '_relay' AND pg_has_role(l.oid, 'USAGE'))
  )
  ORDER BY 1
  LIMIT 8
),
needed (name, privilege) AS (
  VALUES
    ('migration', 'SELECT'),
    ('outbox', 'SELECT'),
    ('home', 'SELECT'),
    ('home', 'INSERT'),
    ('home', 'UPDATE'),
    ('home_here', 'SELECT'),
    ('message_ids', 'SELECT'),
    ('reset', 'SELECT'),
    ('reset', 'INSERT'),
    ('reset', 'UPDATE'),
    ('message', 'SELECT'),
    ('log', 'SELECT'),
    ('message_0', 'SELECT'),
    ('message_1', 'SELECT'),
    ('message_2', 'SELECT'),
    ('message_3', 'SELECT'),
    ('message_4', 'SELECT'),
    ('message_5', 'SELECT'),
    ('message_6', 'SELECT'),
    ('message_7', 'SELECT'),
    ('segment', 'SELECT'),
    ('turn', 'SELECT'),
    ('lane_cursor', 'SELECT'),
    ('lane', 'SELECT'),
    ('lane', 'UPDATE'),
    ('cursor', 'SELECT'),
    ('cursor', 'INSERT'),
    ('cursor', 'UPDATE'),
    ('cursor', 'DELETE'),
    ('parked', 'SELECT'),
    ('parked', 'INSERT'),
    ('parked', 'UPDATE'),
    ('parked', 'DELETE'),
    ('discarded', 'SELECT'),
    ('replay', 'SELECT'),
    ('pause', 'SELECT'),
    ('saga_leader', 'SELECT'),
    ('milestone', 'SELECT'),
    ('milestone', 'INSERT'),
    ('milestone', 'DELETE'),
    ('receipt', 'SELECT'),
    ('receipt', 'INSERT'),
    ('receipt', 'UPDATE'),
    ('receipt', 'DELETE'),
    ('late_receipt', 'SELECT'),
    ('late_receipt', 'INSERT'),
    ('late_receipt', 'UPDATE'),
    ('late_receipt', 'DELETE'),
    ('stream', 'SELECT'),
    ('stream', 'INSERT'),
    ('stream', 'UPDATE'),
    ('loss', 'SELECT'),
    ('maintenance', 'SELECT'),
    ('maintenance', 'UPDATE'),
    ('maintenance_fault', 'SELECT'),
    ('maintenance_fault', 'INSERT'),
    ('maintenance_fault', 'UPDATE'),
    ('maintenance_fault', 'DELETE'),
    ('inbox_scope', 'SELECT'),
    ('installation', 'SELECT'),
    ('relay', 'SELECT'),
    ('relay', 'INSERT'),
    ('relay', 'UPDATE'),
    ('relay', 'DELETE'),
    ('delayed', 'SELECT'),
    ('throttle', 'SELECT'),
    ('throttle', 'INSERT'),
    ('throttle', 'UPDATE'),
    ('throttle', 'DELETE'),
    ('expectation', 'SELECT'),
    ('history', 'SELECT'),
    ('history', 'INSERT'),
    ('history', 'DELETE'),
    ('relay_asleep', 'SELECT'),
    ('relay_asleep', 'UPDATE')
),
-- Of the inboxes, a relay reads no payload and no outcome.
readable (name, columns) AS (
  VALUES
    ('inbox', '{scope,tenant,key,created_at}'::text[]),
    ('inbox_attempt', '{scope,tenant,key,message,failed_at,reason}'),
    ('inbox_snooze', '{scope,due_at}'),
    ('dead_letter', '{scope,stream}'),
    ('canary', '{id,state}')
)
SELECT l.role::text AS role, string_agg(l.privilege, '; ' ORDER BY l.privilege) AS lacking
FROM (
  SELECT r.name AS role, 'USAGE on schema ' || s.nspname AS privilege
  FROM role AS r, pg_namespace AS s
  WHERE s.nspname = $1 AND NOT has_schema_privilege(r.name, s.oid, 'USAGE')
  UNION ALL
  SELECT r.name, string_agg(n.privilege, ', ' ORDER BY n.privilege) || ' on ' || n.name
  FROM pg_namespace AS s
  JOIN pg_class AS c ON c.relnamespace = s.oid
  JOIN needed AS n ON n.name = c.relname
  CROSS JOIN role AS r
  WHERE s.nspname = $1
    AND NOT CASE c.relkind
      WHEN 'S' THEN has_sequence_privilege(r.name, c.oid, n.privilege)
      ELSE has_table_privilege(r.name, c.oid, n.privilege)
    END
  GROUP BY r.name, n.name
  UNION ALL
  SELECT r.name, 'SELECT (' || string_agg(a.attname, ', ' ORDER BY a.attnum) || ') on ' || n.name
  FROM pg_namespace AS s
  JOIN pg_class AS c ON c.relnamespace = s.oid
  JOIN readable AS n ON n.name = c.relname
  JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = ANY (n.columns)
  CROSS JOIN role AS r
  WHERE s.nspname = $1 AND NOT has_column_privilege(r.name, c.oid, a.attnum, 'SELECT')
  GROUP BY r.name, n.name
  UNION ALL
  SELECT r.name, 'EXECUTE on ' || p.oid::regprocedure
  FROM pg_namespace AS s
  JOIN pg_proc AS p ON p.pronamespace = s.oid
  CROSS JOIN role AS r
  WHERE s.nspname = $1
    AND p.proname IN (
      'repair_ids', 'written_by', 'lane_count', 'headers_text', 'readable_headers', 'move_delayed', 'end_turn',
      'drain_segments', 'find_unsent', 'empty_segment', 'forget_emptied', 'forget_kept', 'note_loss', 'resend_lost',
      'running_canaries', 'take_canary_step', 'note_canary_fault'
    )
    AND NOT has_function_privilege(r.name, p.oid, 'EXECUTE')
) AS l
GROUP BY l.role
ORDER BY 1
