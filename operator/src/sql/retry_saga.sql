-- Ask for a new attempt at the waiting steps of a saga, and record it: a row for each step; one for
-- a saga in quarantine, which is read again. The new attempt has a key of its own, so the dead
-- letter of the last one is done with: it is discarded, and recorded as well. Of several letters
-- with a command's key the participant's cannot be told (a copy may have died elsewhere): they
-- stay.
-- Returns a row for each audited one: the last command, and whether its letter was discarded; NULL
-- for a command that did not die here. See `saga/src/command.rs` for its key.
-- $1: its id; $2: a step, NULL for all that wait; $3: operator; $4: note.
-- Index: saga_pkey, saga_step_pkey; dead_letter has few rows. Locking: the saga's row, the letters.
-- Error OB009 when nothing waits any more.
WITH asked AS MATERIALIZED (
  SELECT s.id, s.type, s.key, s.direction = 'backward' AS is_undo, {schema}.retry_saga(s.id, $2::text) AS steps
  FROM {schema}.saga AS s
  WHERE s.id = $1
),
commands AS MATERIALIZED (
  SELECT
    a.type,
    a.key,
    t.step,
    c.subject,
    concat(
      a.key, ':', t.step, CASE WHEN c.attempt > 1 THEN ':#' || c.attempt END, CASE WHEN a.is_undo THEN ':undo' END
    ) AS command,
    c.state IN ('failed', 'undo-failed') AS may_have_died
  FROM asked AS a
  LEFT JOIN LATERAL unnest(a.steps) AS t (step) ON true
  LEFT JOIN LATERAL (
    SELECT
      p.state,
      CASE WHEN a.is_undo THEN p.undo_subject ELSE p.subject END AS subject,
      CASE WHEN a.is_undo THEN p.undo_attempt ELSE p.attempt END AS attempt
    FROM {schema}.saga_step AS p
    WHERE p.saga_id = a.id AND p.step = t.step
  ) AS c ON true
),
only_letter AS (
  SELECT min(d.id) AS id
  FROM commands AS c
  JOIN {schema}.dead_letter AS d ON d.key = c.command COLLATE "C" AND d.subject = c.subject
  WHERE c.may_have_died
  GROUP BY c.command
  HAVING count(*) = 1
),
gone AS (
  DELETE FROM {schema}.dead_letter AS d
  USING only_letter AS o
  WHERE d.id = o.id
  RETURNING d.id, d.scope, d.key, d.subject, d.reason
),
discarded AS (
  INSERT INTO {schema}.audit (operator, note, action, message_id, scope, key, subject, reason)
  SELECT $3, $4, 'discard', g.id, g.scope, g.key, g.subject, g.reason
  FROM gone AS g
),
noted AS (
  INSERT INTO {schema}.audit (operator, note, action, scope, key, reason)
  SELECT $3, $4, 'retry', c.type, c.key, c.step
  FROM commands AS c
)
SELECT
  c.command,
  CASE WHEN c.may_have_died THEN EXISTS (SELECT FROM gone AS g WHERE g.key = c.command COLLATE "C") END AS is_discarded
FROM commands AS c
