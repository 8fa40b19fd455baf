-- Write down where steps stand, and their commands when they are sent for the first time.
-- $1: ids of the sagas; $2: names; $3: states; $4: attempts; $5: attempts at the compensation; $6:
-- whether an earlier attempt may have had an effect; $7: subjects; $8: payloads; $9 and $10: those
-- of the compensation, or NULL; $11: reasons; $12: in how many seconds the answer is late, or NULL.
-- Index: saga_step_pkey. Locking: that of the sagas, locked before.
INSERT INTO {schema}.saga_step AS t (saga_id, step, state, attempt, undo_attempt, in_doubt, subject, payload,
                                     undo_subject, undo_payload, reason, deadline_at, sent_at)
SELECT g.saga_id, g.step, g.state, g.attempt, g.undo_attempt, g.in_doubt, g.subject, g.payload, g.undo_subject,
       g.undo_payload, left(g.reason, 250), clock_timestamp() + make_interval(secs => g.late_in), clock_timestamp()
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::integer[], $5::integer[], $6::boolean[], $7::text[],
            $8::bytea[], $9::text[], $10::bytea[], $11::text[], $12::float8[])
  AS g (saga_id, step, state, attempt, undo_attempt, in_doubt, subject, payload, undo_subject, undo_payload,
        reason, late_in)
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
