-- Make a failing message due now, and record it; the caller publishes a copy of it and then
-- commits.
-- $1: scope; $2: tenant; $3: key; $4: copy; $5: operator; $6: note. No row when the key has
-- ended, or one of its messages is due already and none has failed since: so a key gets one copy
-- for each time that it fails. The number, of the key's last failure, makes the same id for the
-- broker when the command dies before its commit and runs again. Under a lease the pause is one
-- of the claim, too, and ends now.
-- Index: inbox_attempt_pkey, inbox_pkey, inbox_claim_pkey. Locking: the rows until the end of
-- the transaction; another operator waits and then finds the message due, a consumer waits to
-- record its next failure, or to claim.
WITH taken AS (
  UPDATE {schema}.inbox_attempt AS a
  SET due_at = clock_timestamp()
  WHERE a.scope = $1
    AND a.tenant = $2
    AND a.key = $3
    AND a.message = $4
    AND a.failed_at IS NOT NULL
    AND NOT EXISTS (
      SELECT
      FROM {schema}.inbox_attempt AS o
      WHERE o.scope = a.scope AND o.tenant = a.tenant AND o.key = a.key
        AND o.due_at <= clock_timestamp()
        AND NOT EXISTS (
          SELECT
          FROM {schema}.inbox_attempt AS p
          WHERE p.scope = a.scope AND p.tenant = a.tenant AND p.key = a.key AND p.failed_at > o.due_at
        )
    )
    AND NOT EXISTS (
      SELECT
      FROM {schema}.inbox AS i
      WHERE i.scope = $1 AND i.tenant = $2 AND i.key = $3
    )
  RETURNING a.scope, a.tenant, a.key, a.subject, a.reason
),
released AS (
  UPDATE {schema}.inbox_claim AS c
  SET lease_until = clock_timestamp()
  FROM taken AS t
  WHERE c.scope = t.scope
    AND c.tenant = t.tenant
    AND c.key = t.key
    AND c.state <> 'running'
    AND c.lease_until > clock_timestamp()
),
noted AS (
  INSERT INTO {schema}.audit (operator, note, action, scope, key, subject, reason)
  SELECT $5, $6, 'retry', t.scope, t.key, t.subject, t.reason
  FROM taken AS t
)
SELECT
  (SELECT o.identity FROM {schema}.outbox AS o) AS outbox,
  (
    SELECT (extract(epoch FROM max(a.failed_at)) * 1000000)::bigint
    FROM {schema}.inbox_attempt AS a
    WHERE a.scope = $1 AND a.tenant = $2 AND a.key = $3
  ) AS number
FROM taken AS t
