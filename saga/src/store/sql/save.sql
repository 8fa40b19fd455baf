-- Write down where sagas stand that this transaction has locked.
-- $1: ids; $2: revisions as they were read; $3: states; $4: directions; $5: reasons; $6: data as
-- JSON; $7: whether all of it can still be late; $8: in how many seconds somebody has to look
-- again, or NULL. One row of each array belongs to one saga.
-- Returns how many were as they were read. Index: saga_pkey. Locking: the rows, locked before.
WITH saved AS (
  UPDATE {schema}.saga AS s
  SET state = g.state, direction = g.direction, reason = left(g.reason, 250), data = g.data::jsonb,
      revision = s.revision + 1, changed_at = clock_timestamp(),
      deadline_at = CASE WHEN g.can_be_late THEN s.deadline_at END,
      due_at = clock_timestamp() + make_interval(secs => g.due_in),
      finished_at = CASE WHEN g.state IN ('completed', 'compensated') THEN clock_timestamp() END
  FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::boolean[], $8::float8[])
    AS g (id, revision, state, direction, reason, data, can_be_late, due_in)
  WHERE s.id = g.id AND s.revision = g.revision
  RETURNING s.id
)
SELECT count(*) FROM saved
