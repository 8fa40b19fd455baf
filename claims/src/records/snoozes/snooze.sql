-- Snooze a message: this run does not count as an attempt.
-- $1 scope; $2 tenant; $3 key; $4 message; $5 number of the delivery; $6 pause in milliseconds;
-- $7 longest time in milliseconds; $8 reason. Returns texts, which every driver reads in the same
-- way: how often the message was snoozed, and how many milliseconds ago for the first time. Index:
-- inbox_snooze_pkey, inbox_attempt_pkey. Locking: the rows of this copy of the message; a process
-- that works on another copy locks other rows. A row that was not touched for the longest time
-- belongs to an earlier problem: the time counts from now again, but the attempts do not.
WITH tried AS (
  UPDATE {schema}.inbox_attempt AS a
  SET failures = a.failures + greatest(a.begun - 2, 0),
      begun = 0,
      touched_at = clock_timestamp(),
      due_at = clock_timestamp() + $6::bigint * interval '1 millisecond'
  WHERE a.scope = $1::text
    AND a.tenant = $2::text
    AND a.key = $3::text
    AND a.message = $4::text
  RETURNING failures
)
INSERT INTO {schema}.inbox_snooze AS p (scope, tenant, key, message, delivery, attempts, reason, due_at)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::bigint, coalesce((SELECT t.failures FROM tried AS t), 0), $8::text,
        clock_timestamp() + $6::bigint * interval '1 millisecond')
ON CONFLICT ON CONSTRAINT inbox_snooze_pkey DO UPDATE
SET delivery = excluded.delivery,
    attempts = excluded.attempts,
    reason = excluded.reason,
    due_at = excluded.due_at,
    snoozes = CASE
      WHEN p.due_at < clock_timestamp() - $7::bigint * interval '1 millisecond' THEN 1
      ELSE p.snoozes + 1
    END,
    snoozed_at = CASE
      WHEN p.due_at < clock_timestamp() - $7::bigint * interval '1 millisecond' THEN excluded.snoozed_at
      ELSE p.snoozed_at
    END
RETURNING p.snoozes::text,
          (1000 * least(greatest(extract(epoch FROM clock_timestamp()) - extract(epoch FROM p.snoozed_at), -1e12), 1e12))::bigint::text AS since_milliseconds
