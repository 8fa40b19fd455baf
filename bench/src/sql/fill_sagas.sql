-- Insert instances of a saga directly into the tables, which is faster than starting them. Each has
-- done its first step; a finished instance has done the other steps too.
-- $1 the first number, $2 the last, $3 whether they have finished. Index: none is read. Locking:
-- only the new rows.
WITH saga AS (
  INSERT INTO {schema}.saga (type, business_id, key, scope, version, fingerprint, state, data, began_with, deadline_at,
                             due_at, finished_at)
  SELECT 'filler', 'filler-' || n, 'filler-' || n || ':filler', 'saga', 1, 'filler',
         CASE WHEN $3 THEN 'completed' ELSE 'running' END,
         '{"customer": 1, "cents": 100, "note": "filler"}', '\x00',
         CASE WHEN NOT $3 THEN clock_timestamp() + interval '1 day' END,
         CASE WHEN NOT $3 THEN clock_timestamp() + n * interval '1 second' + interval '1 day' END,
         CASE WHEN $3 THEN clock_timestamp() END
  FROM generate_series($1::bigint, $2::bigint) AS n
  RETURNING id
)
INSERT INTO {schema}.saga_step (saga_id, step, state, attempt, subject, payload, sent_at, deadline_at)
SELECT s.id, t.step, CASE WHEN $3 OR t.place = 1 THEN 'done' ELSE 'sent' END, 1, 'bench.filler', '{"customer":1,"cents":100}',
       clock_timestamp(), CASE WHEN NOT $3 AND t.place = 2 THEN clock_timestamp() + interval '1 day' END
FROM saga AS s
CROSS JOIN (VALUES ('one', 1), ('two', 2), ('three', 3)) AS t (step, place)
WHERE $3 OR t.place < 3
