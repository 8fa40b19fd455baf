-- Write down where sagas stand that this transaction has locked, with the steps that changed, and
-- their commands when they are sent for the first time. Of sagas, an array each: $1: ids; $2:
-- revisions as they were read; $3: states; $4: directions; $5: reasons; $6: data as JSON; $7:
-- whether all of it can still be late; $8: in how many seconds a process has to look again, or
-- NULL. Of steps, an array each: $9: the saga's id; $10: names; $11: states; $12: attempts; $13:
-- attempts at the compensation; $14: whether an earlier attempt may have had an effect; $15:
-- subjects; $16: payloads; $17 and $18: those of the compensation, or NULL; $19: reasons; $20: in
-- how many seconds the answer is late, or NULL. Returns a row for each saga that is as it was read,
-- and writes nothing of the others. A due time that comes too early stays: one look that finds
-- nothing costs less than an entry in the index for every step. Where no indexed column changes,
-- none of the saga's indexes does. Index: saga_pkey, saga_step_pkey. Locking: the sagas' rows,
-- locked before, stand for their steps.
WITH saved AS (
  UPDATE {schema}.saga AS s
  SET state = g.state, direction = g.direction, reason = left(g.reason, 250), data = g.data::jsonb,
      revision = s.revision + 1, changed_at = clock_timestamp(),
      deadline_at = CASE WHEN g.can_be_late THEN s.deadline_at END,
      due_at = CASE
        WHEN s.due_at > clock_timestamp() AND s.due_at <= clock_timestamp() + make_interval(secs => g.due_in)
        THEN s.due_at
        ELSE clock_timestamp() + make_interval(secs => g.due_in)
      END,
      finished_at = CASE WHEN g.state IN ('completed', 'compensated') THEN clock_timestamp() END
  FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::boolean[], $8::float8[])
    AS g (id, revision, state, direction, reason, data, can_be_late, due_in)
  WHERE s.id = g.id AND s.revision = g.revision
  RETURNING s.id
),
written AS (
  INSERT INTO {schema}.saga_step AS t (saga_id, step, state, attempt, undo_attempt, in_doubt, subject, payload,
                                       undo_subject, undo_payload, reason, deadline_at, sent_at)
  SELECT s.id, g.step, g.state, g.attempt, g.undo_attempt, g.in_doubt, g.subject, g.payload, g.undo_subject,
         g.undo_payload, left(g.reason, 250), clock_timestamp() + make_interval(secs => g.late_in), clock_timestamp()
  FROM saved AS s
  JOIN unnest($9::bigint[], $10::text[], $11::text[], $12::integer[], $13::integer[], $14::boolean[], $15::text[],
              $16::bytea[], $17::text[], $18::bytea[], $19::text[], $20::float8[])
    AS g (saga_id, step, state, attempt, undo_attempt, in_doubt, subject, payload, undo_subject, undo_payload, reason, late_in)
    ON g.saga_id = s.id
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
