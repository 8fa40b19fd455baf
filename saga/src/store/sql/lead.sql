-- Write down that this process leads sagas of these graphs; of several processes one does.
-- $1: the scope of its orchestrator; $2: fingerprints. Index: saga_leader_pkey. Locking: the rows,
-- in their order.
INSERT INTO {schema}.saga_leader AS l (scope, fingerprint)
SELECT $1, g
FROM unnest($2::text[]) AS g
ORDER BY g
ON CONFLICT ON CONSTRAINT saga_leader_pkey DO UPDATE
SET led_at = excluded.led_at
WHERE l.led_at < excluded.led_at - interval '10 seconds'
