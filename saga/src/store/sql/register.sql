-- Write graphs down, and the plans of those that are files.
-- $1: fingerprints; $2: types; $3: versions; $4: graphs as JSON; $5: plans as JSON, or NULL; $6:
-- the scope of the orchestrator; $7: the subject that participants answer to.
-- Index: saga_definition_pkey. Locking: of files, the advisory lock of each type, until it commits.
SELECT count({schema}.register_saga(g.fingerprint, g.type, g.version, g.graph::jsonb, g.plan::jsonb, $6, $7))
FROM (
  SELECT *
  FROM unnest($1::text[], $2::text[], $3::integer[], $4::text[], $5::text[]) AS u (fingerprint, type, version, graph, plan)
  ORDER BY u.type, u.version
) AS g
