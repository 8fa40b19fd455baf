-- Write a new saga and its first steps down, unless its business id has one. $1: type; $2:
-- business id; $3: key; $4: version; $5: fingerprint of the graph; $6: data as JSON; $7: in how
-- many seconds all of it is late, or NULL; $8: in how many seconds it is due; $9: the scope of its
-- orchestrator; $10: a hash of the data, by which another start with the same is known; $11 to
-- $21: steps, as $9 to $19 of advance.sql. Returns its id, or no row: 0019_saga_files.sql has the
-- function. Index: saga_business_id_unique, saga_key_unique. Locking: waits for another
-- transaction that starts a saga with this business id or key.
SELECT id
FROM {schema}.write_saga($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)
  AS t (id)
