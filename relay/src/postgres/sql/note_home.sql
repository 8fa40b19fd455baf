-- Note that the outbox lives in this database.
-- $1: the address by which this relay knows it; $2: the verdict that the relay judged by: if it is
-- another one by now, the relay has reached another database meanwhile.
-- Index: home_pkey; a row. Locking: the row.
INSERT INTO {schema}.home AS h (system_identifier, database_oid, database_name, address)
SELECT n.system_identifier, n.database_oid, n.database_name, $1
FROM {schema}.home_here AS n
WHERE n.verdict = $2
ON CONFLICT ON CONSTRAINT home_pkey DO UPDATE
SET
  system_identifier = excluded.system_identifier,
  database_oid = excluded.database_oid,
  database_name = excluded.database_name,
  address = excluded.address,
  noted_at = CASE
    WHEN h.system_identifier = excluded.system_identifier AND h.database_oid = excluded.database_oid THEN h.noted_at
    ELSE excluded.noted_at
  END,
  rival = NULL,
  rival_since = NULL,
  rival_seen_at = NULL
WHERE (h.system_identifier, h.database_oid, h.database_name, h.address)
  IS DISTINCT FROM (excluded.system_identifier, excluded.database_oid, excluded.database_name, excluded.address)
  OR h.rival IS NOT NULL
