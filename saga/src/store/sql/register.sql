-- Write graphs down for operators.
-- $1: fingerprints; $2: types; $3: versions; $4: graphs as JSON.
-- Index: saga_definition_pkey. Locking: none that lasts.
INSERT INTO {schema}.saga_definition (fingerprint, type, version, graph)
SELECT g.fingerprint, g.type, g.version, g.graph::jsonb
FROM unnest($1::text[], $2::text[], $3::integer[], $4::text[]) AS g (fingerprint, type, version, graph)
ON CONFLICT DO NOTHING
