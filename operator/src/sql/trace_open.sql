-- Which keys are snoozed, claimed under a lease, or have effects outside the database, in the
-- inboxes of this database: those that were asked for, and those below one of them. A snooze whose
-- time has come, and one of a key that has ended, holds nothing.
-- $1: the keys; $2: the key below which all are looked for; $3: inboxes (of each scope and tenant
-- one) to look at in each table, at most; $4: rows of each table at most. Keys below `key` lie
-- between `key:` and `key;`.
-- Index: inbox_snooze_pkey, inbox_claim_pkey and inbox_effect_pkey, from one scope and tenant to
-- the next, then each key in each; inbox_pkey. Locking: none.
WITH RECURSIVE snoozing AS (
  (SELECT z.scope, z.tenant, 1 AS place FROM {schema}.inbox_snooze AS z ORDER BY z.scope, z.tenant LIMIT 1)
  UNION ALL
  SELECT next.scope, next.tenant, h.place + 1
  FROM snoozing AS h
  CROSS JOIN LATERAL (
    SELECT z.scope, z.tenant
    FROM {schema}.inbox_snooze AS z
    WHERE (z.scope, z.tenant) > (h.scope, h.tenant)
    ORDER BY z.scope, z.tenant
    LIMIT 1
  ) AS next
  WHERE h.place < $3
),
claiming AS (
  (SELECT c.scope, c.tenant, 1 AS place FROM {schema}.inbox_claim AS c ORDER BY c.scope, c.tenant LIMIT 1)
  UNION ALL
  SELECT next.scope, next.tenant, h.place + 1
  FROM claiming AS h
  CROSS JOIN LATERAL (
    SELECT c.scope, c.tenant
    FROM {schema}.inbox_claim AS c
    WHERE (c.scope, c.tenant) > (h.scope, h.tenant)
    ORDER BY c.scope, c.tenant
    LIMIT 1
  ) AS next
  WHERE h.place < $3
),
acting AS (
  (SELECT e.scope, e.tenant, 1 AS place FROM {schema}.inbox_effect AS e ORDER BY e.scope, e.tenant LIMIT 1)
  UNION ALL
  SELECT next.scope, next.tenant, h.place + 1
  FROM acting AS h
  CROSS JOIN LATERAL (
    SELECT e.scope, e.tenant
    FROM {schema}.inbox_effect AS e
    WHERE (e.scope, e.tenant) > (h.scope, h.tenant)
    ORDER BY e.scope, e.tenant
    LIMIT 1
  ) AS next
  WHERE h.place < $3
)
SELECT
  'snooze' AS kind,
  f.key::text AS key,
  f.scope::text AS scope,
  f.tenant::text AS tenant,
  'snoozed' AS state,
  NULL AS step,
  NULL AS owner,
  f.snoozes AS times,
  f.snoozed_at AS since,
  f.due_at AS until,
  false AS is_over,
  f.reason
FROM snoozing AS h
CROSS JOIN LATERAL (
  (
    SELECT z.key, z.scope, z.tenant, z.message, z.snoozes, z.snoozed_at, z.due_at, z.reason FROM {schema}.inbox_snooze AS z
    WHERE z.scope = h.scope AND z.tenant = h.tenant AND z.key = ANY ($1::text[])
    ORDER BY z.key
    LIMIT $4
  )
  UNION
  (
    SELECT z.key, z.scope, z.tenant, z.message, z.snoozes, z.snoozed_at, z.due_at, z.reason FROM {schema}.inbox_snooze AS z
    WHERE z.scope = h.scope AND z.tenant = h.tenant AND z.key > $2::text || ':' AND z.key < $2::text || ';'
    ORDER BY z.key
    LIMIT $4
  )
) AS f
WHERE f.due_at > clock_timestamp()
  AND NOT EXISTS (
    SELECT FROM {schema}.inbox AS i WHERE i.scope = f.scope AND i.tenant = f.tenant AND i.key = f.key OFFSET 0
  )
UNION ALL
SELECT
  'lease', f.key::text, f.scope::text, f.tenant::text, f.state, NULL, f.owner::text, f.attempts::bigint,
  f.created_at, f.lease_until,
  f.state = 'running' AND f.lease_until <= clock_timestamp(), f.reason
FROM claiming AS h
CROSS JOIN LATERAL (
  (
    SELECT c.key, c.scope, c.tenant, c.state, c.owner, c.attempts, c.created_at, c.lease_until, c.reason
    FROM {schema}.inbox_claim AS c
    WHERE c.scope = h.scope AND c.tenant = h.tenant AND c.key = ANY ($1::text[])
    ORDER BY c.key
    LIMIT $4
  )
  UNION
  (
    SELECT c.key, c.scope, c.tenant, c.state, c.owner, c.attempts, c.created_at, c.lease_until, c.reason
    FROM {schema}.inbox_claim AS c
    WHERE c.scope = h.scope AND c.tenant = h.tenant AND c.key > $2::text || ':' AND c.key < $2::text || ';'
    ORDER BY c.key
    LIMIT $4
  )
) AS f
UNION ALL
SELECT
  'effect', f.key::text, f.scope::text, f.tenant::text, f.state, f.step::text, NULL, 1::bigint, f.started_at, NULL, false, NULL
FROM acting AS h
CROSS JOIN LATERAL (
  (
    SELECT e.key, e.scope, e.tenant, e.state, e.step, e.started_at
    FROM {schema}.inbox_effect AS e
    WHERE e.scope = h.scope AND e.tenant = h.tenant AND e.key = ANY ($1::text[])
    ORDER BY e.key, e.step
    LIMIT $4
  )
  UNION
  (
    SELECT e.key, e.scope, e.tenant, e.state, e.step, e.started_at
    FROM {schema}.inbox_effect AS e
    WHERE e.scope = h.scope AND e.tenant = h.tenant AND e.key > $2::text || ':' AND e.key < $2::text || ';'
    ORDER BY e.key, e.step
    LIMIT $4
  )
) AS f
ORDER BY key, scope, tenant, kind, since
