-- The privileges that a relay or a doctor needs and this role lacks, on objects that exist: the
-- grants of schema/migrations/grants.sql.
-- $1: the schema. Index: those of the catalogs. Locking: none.
WITH needed (name, privilege) AS (
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
SELECT 'USAGE on schema ' || s.nspname AS lacking
FROM pg_namespace AS s
WHERE s.nspname = $1 AND NOT has_schema_privilege(s.oid, 'USAGE')
UNION ALL
SELECT string_agg(n.privilege, ', ' ORDER BY n.privilege) || ' on ' || n.name
FROM pg_namespace AS s
JOIN pg_class AS c ON c.relnamespace = s.oid
JOIN needed AS n ON n.name = c.relname
WHERE s.nspname = $1
  AND NOT CASE c.relkind
    WHEN 'S' THEN has_sequence_privilege(c.oid, n.privilege)
    ELSE has_table_privilege(c.oid, n.privilege)
  END
GROUP BY n.name
UNION ALL
SELECT 'SELECT (' || string_agg(a.attname, ', ' ORDER BY a.attnum) || ') on ' || r.name
FROM pg_namespace AS s
JOIN pg_class AS c ON c.relnamespace = s.oid
JOIN readable AS r ON r.name = c.relname
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = ANY (r.columns)
WHERE s.nspname = $1 AND NOT has_column_privilege(c.oid, a.attnum, 'SELECT')
GROUP BY r.name
UNION ALL
SELECT 'EXECUTE on ' || p.oid::regprocedure
FROM pg_namespace AS s
JOIN pg_proc AS p ON p.pronamespace = s.oid
WHERE s.nspname = $1
  AND p.proname IN (
    'repair_ids', 'written_by', 'lane_count', 'headers_text', 'readable_headers', 'move_delayed', 'end_turn',
    'drain_segments', 'find_unsent', 'empty_segment', 'forget_emptied', 'forget_kept', 'note_loss', 'resend_lost',
    'running_canaries', 'take_canary_step', 'note_canary_fault'
  )
  AND NOT has_function_privilege(p.oid, 'EXECUTE')
ORDER BY 1
