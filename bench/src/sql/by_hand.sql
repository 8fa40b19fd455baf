-- An inbox as one writes it by hand: the key is inserted before the effect. $1 key, $2 fingerprint.
-- Index: inbox_pkey. Locking: a copy waits on the index until the first is committed, unlike with
--   the inbox.
INSERT INTO {schema}.inbox (scope, tenant, key, fingerprint, status)
VALUES ('bench:by-hand', '', $1::text, $2::bytea, 'completed')
ON CONFLICT DO NOTHING
