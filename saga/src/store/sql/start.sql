-- Write a new saga down, unless its business id has one.
-- $1: type; $2: business id; $3: key; $4: version; $5: fingerprint of the graph; $6: data as JSON;
-- $7: in how many seconds all of it is late, or NULL; $8: in how many seconds it is due.
-- Returns its id, or no row. Index: saga_business_id_unique, saga_key_unique. Locking: waits for
-- another transaction that starts a saga with this business id or key.
INSERT INTO {schema}.saga AS s (type, business_id, key, version, fingerprint, data, began_with, deadline_at, due_at)
SELECT $1, $2, $3, $4, $5, d.data, sha256(convert_to(d.data::text, 'UTF8')),
       clock_timestamp() + make_interval(secs => $7), clock_timestamp() + make_interval(secs => $8)
FROM (SELECT $6::jsonb AS data) AS d
ON CONFLICT DO NOTHING
RETURNING s.id
