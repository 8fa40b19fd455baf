-- Write a new saga and its first steps down, unless its business id has one.
-- $1: type; $2: business id; $3: key; $4: version; $5: fingerprint of the graph; $6: data as JSON;
-- $7: in how many seconds all of it is late, or NULL; $8: in how many seconds it is due; $9: the
-- scope of its orchestrator; $10: a hash of the data, by which another start with the same is
-- known; $11 to $21: steps, as $9 to $19 of advance.sql.
-- Returns its id, or no row. Index: saga_business_id_unique, saga_key_unique. Locking: waits for
-- another transaction that starts a saga with this business id or key.
WITH started AS (
  INSERT INTO {schema}.saga AS s (type, business_id, key, version, fingerprint, data, began_with, deadline_at, due_at,
                              scope)
  SELECT $1, $2, $3, $4, $5, $6::text::jsonb, $10::bytea,
         clock_timestamp() + make_interval(secs => $7), clock_timestamp() + make_interval(secs => $8), $9
  ON CONFLICT DO NOTHING
  RETURNING s.id
),
sent AS (
  INSERT INTO {schema}.saga_step (saga_id, step, state, attempt, undo_attempt, in_doubt, subject, payload,
                                  undo_subject, undo_payload, reason, deadline_at, sent_at)
  SELECT s.id, g.step, g.state, g.attempt, g.undo_attempt, g.in_doubt, g.subject, g.payload, g.undo_subject,
         g.undo_payload, left(g.reason, 250), clock_timestamp() + make_interval(secs => g.late_in), clock_timestamp()
  FROM started AS s
  CROSS JOIN unnest($11::text[], $12::text[], $13::integer[], $14::integer[], $15::boolean[], $16::text[], $17::bytea[], $18::text[],
              $19::bytea[], $20::text[], $21::float8[])
    AS g (step, state, attempt, undo_attempt, in_doubt, subject, payload, undo_subject, undo_payload, reason, late_in)
)
SELECT s.id FROM started AS s
