-- Take a dead letter out, free its key, and record it; the caller publishes the returned message
-- and then commits.
-- $1: its id; $2: operator; $3: note. The key is freed only where it died of this very payload: a
-- letter about another payload under a used key (a mismatch) leaves the settled key as it is. The
-- fingerprint is computed as in the inbox, see `inbox/src/identity.rs`, unless the payload stays in
-- the Object Store. The number, microseconds since 1970, makes an id for the broker that it has not
-- seen: it must store the message again, however often that was tried.
-- Index: dead_letter_pkey, inbox_pkey. Locking: both rows until the end of the transaction. Another
-- operator waits and then finds no letter; a consumer that gets the message before the commit waits
-- for the key, or takes it for in flight, see `claims/src/transactional/dead.sql`.
WITH taken AS (
  DELETE FROM {schema}.dead_letter
  WHERE id = $1
  RETURNING id, scope, tenant, key, subject, headers, payload, reason, fingerprint
),
freed AS (
  DELETE FROM {schema}.inbox AS i
  USING taken AS t
  WHERE i.scope = t.scope
    AND i.tenant = t.tenant
    AND i.key = t.key
    AND i.status = 'dead'
    AND i.fingerprint =
      coalesce(t.fingerprint, sha256(convert_to('oncebox payload 1', 'UTF8') || '\x00'::bytea || t.payload))
),
noted AS (
  INSERT INTO {schema}.audit (operator, note, action, message_id, scope, key, subject, reason)
  SELECT $2, $3, 'retry', t.id, t.scope, t.key, t.subject, t.reason
  FROM taken AS t
)
SELECT
  (SELECT o.identity FROM {schema}.outbox AS o) AS outbox,
  t.key,
  t.subject,
  t.headers::text AS headers,
  t.payload,
  (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS number
FROM taken AS t
