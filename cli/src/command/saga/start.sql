-- Start a saga of a file. $1: type; $2: business id; $3: data as JSON; $4: version, or NULL for the
-- newest. Returns its key and whether it is new. Index: saga_definition_start. Locking: waits for
-- another transaction that starts this saga, or that applies another file of its type.
SELECT s.key, s.is_new
FROM {schema}.start_saga($1, $2, $3::text::jsonb, $4) AS s
