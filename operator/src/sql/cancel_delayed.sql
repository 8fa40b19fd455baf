-- Cancel delayed messages, and record it; those that have been moved into the log meanwhile stay.
-- $1: keys; $2: operator; $3: note.
-- Index: delayed_key_unique; inside the function also message_pkey. Locking: the rows that are
-- cancelled; a relay skips them.
WITH cancelled AS MATERIALIZED (
  SELECT w.id, w.key, w.subject
  FROM (
    SELECT d.id, d.key, d.subject, {schema}.cancel_delayed(d.key) AS is_done
    FROM {schema}.delayed AS d
    WHERE d.key = ANY ($1)
    OFFSET 0
  ) AS w
  WHERE w.is_done
)
INSERT INTO {schema}.audit (operator, note, action, message_id, key, subject, reason)
SELECT $2, $3, 'cancel', c.id, c.key, c.subject, 'delayed'
FROM cancelled AS c
