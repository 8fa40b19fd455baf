-- Look up a key: how it ended, or who works on it.
-- $1 scope; $2 tenant; $3 key; $4 retention in seconds, or NULL for ever.
-- Index: inbox_pkey, inbox_claim_pkey.
-- Locking: none, except for a dead key: see `../../transactional/dead.sql`. A claim's end replaces
-- the one row by the other in one transaction, so one statement sees either.
SELECT i.status,
       i.fingerprint,
       i.outcome,
       i.message_id,
       coalesce(i.created_at < statement_timestamp() - make_interval(secs => $4::double precision), false) AS is_expired,
       c.fingerprint AS claimed_fingerprint,
       c.lease_until > clock_timestamp() AS is_leased,
       c.state = 'running' AND c.attempts >= 2 AS is_suspect
FROM (VALUES (1)) AS one (row)
LEFT JOIN {schema}.inbox AS i
  ON i.scope = $1::text AND i.tenant = $2::text AND i.key = $3::text
LEFT JOIN {schema}.inbox_claim AS c
  ON c.scope = $1::text AND c.tenant = $2::text AND c.key = $3::text
