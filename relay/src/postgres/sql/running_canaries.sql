-- The canaries that go on; forgets an old one that has ended. 0026_canary.sql has the function.
-- No parameters. Index: canary_pkey, of about a hundred rows. Locking: the row that goes.
SELECT id
FROM {schema}.running_canaries() AS t (id)
