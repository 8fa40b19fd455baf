-- $1 keys of a hundred inboxes; a tenth as many messages that failed, of which half have ended; a
-- tenth as many dead letters, and snoozed messages. Locks: those of the INSERTs. Index: none is
-- read.
WITH scope AS (
  INSERT INTO {schema}.inbox_scope (scope)
  SELECT 'service-' || n
  FROM generate_series(0, 99) AS n
),
ended AS (
  INSERT INTO {schema}.inbox (scope, tenant, key, fingerprint, status)
  SELECT 'service-' || n % 100, '', 'key-' || n, sha256(''), 'completed'
  FROM generate_series(1, $1::bigint) AS n
),
failing AS (
  INSERT INTO {schema}.inbox_attempt (scope, tenant, key, message, failures, reason, failed_at)
  SELECT 'service-' || n % 100, '', 'key-' || n, '', 1, 'no', clock_timestamp()
  FROM generate_series($1::bigint - $1::bigint / 20, $1::bigint + $1::bigint / 20) AS n
),
dead AS (
  INSERT INTO {schema}.dead_letter (scope, tenant, key, subject, headers, payload, deliveries, reason)
  SELECT 'service-' || n % 100, '', 'dead-' || n, 'bench', '{}', '', 1, 'no'
  FROM generate_series(1, $1::bigint / 10) AS n
)
INSERT INTO {schema}.inbox_snooze (scope, tenant, key, message, delivery, attempts, reason, due_at)
SELECT 'service-' || n % 100, '', 'later-' || n, '', 1, 0, 'no', clock_timestamp() + interval '1 day'
FROM generate_series(1, $1::bigint / 10) AS n
