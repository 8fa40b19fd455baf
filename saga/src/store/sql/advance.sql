-- Write down where a saga stands that this transaction has locked, with the steps that changed, and
-- their commands when they are sent for the first time.
-- $1: id; $2: revision as it was read; $3: state; $4: direction; $5: reason; $6: data as JSON; $7:
-- whether all of it can still be late; $8: in how many seconds somebody has to look again, or NULL.
-- Of steps, an array each: $9: names; $10: states; $11: attempts; $12: attempts at the
-- compensation; $13: whether an earlier attempt may have had an effect; $14: subjects; $15:
-- payloads; $16 and $17: those of the compensation, or NULL; $18: reasons; $19: in how many seconds
-- the answer is late, or NULL. Returns one row, or none, and writes nothing then: the saga is not
-- as it was read. A due time that comes too early stays: one look that finds nothing costs less
-- than an entry in the index for every step. Where no indexed column changes, none of the saga's
-- indexes does. Index: saga_pkey, saga_step_pkey. Locking: the saga's row, locked before, stands
-- for its steps.
WITH saved AS (
  UPDATE {schema}.saga AS s
  SET state = $3::text, direction = $4::text, reason = left($5::text, 250), data = $6::text::jsonb,
      revision = s.revision + 1, changed_at = clock_timestamp(),
      deadline_at = CASE WHEN $7::boolean THEN s.deadline_at END,
      due_at = CASE
        WHEN s.due_at > clock_timestamp() AND s.due_at <= clock_timestamp() + make_interval(secs => $8::float8)
        THEN s.due_at
        ELSE clock_timestamp() + make_interval(secs => $8::float8)
      END,
      finished_at = CASE WHEN $3::text IN ('completed', 'compensated') THEN clock_timestamp() END
  WHERE s.id = $1::bigint AND s.revision = $2::bigint
  RETURNING s.id
),
written AS (
  INSERT INTO {schema}.saga_step AS t (saga_id, step, state, attempt, undo_attempt, in_doubt, subject, payload,
                                       undo_subject, undo_payload, reason, deadline_at, sent_at)
  SELECT s.id, g.step, g.state, g.attempt, g.undo_attempt, g.in_doubt, g.subject, g.payload, g.undo_subject,
         g.undo_payload, left(g.reason, 250), clock_timestamp() + make_interval(secs => g.late_in), clock_timestamp()
  FROM saved AS s
  CROSS JOIN unnest($9::text[], $10::text[], $11::integer[], $12::integer[], $13::boolean[], $14::text[], $15::bytea[], $16::text[],
              $17::bytea[], $18::text[], $19::float8[])
    AS g (step, state, attempt, undo_attempt, in_doubt, subject, payload, undo_subject, undo_payload, reason, late_in)
  ON CONFLICT ON CONSTRAINT saga_step_pkey DO UPDATE
  SET state = excluded.state, attempt = excluded.attempt, undo_attempt = excluded.undo_attempt,
      in_doubt = excluded.in_doubt, undo_subject = excluded.undo_subject, undo_payload = excluded.undo_payload,
      reason = excluded.reason, deadline_at = excluded.deadline_at,
      sent_at = CASE WHEN excluded.attempt > t.attempt THEN clock_timestamp() ELSE t.sent_at END,
      answered_at = CASE
        WHEN excluded.state = 'sent' THEN NULL
        WHEN t.state <> excluded.state AND excluded.state IN ('done', 'rejected') THEN clock_timestamp()
        ELSE t.answered_at
      END,
      undo_sent_at = CASE WHEN excluded.undo_attempt > t.undo_attempt THEN clock_timestamp() ELSE t.undo_sent_at END,
      undone_at = CASE
        WHEN t.state <> excluded.state AND excluded.state = 'undone' THEN clock_timestamp()
        ELSE t.undone_at
      END
)
SELECT FROM saved
