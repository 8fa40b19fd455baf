-- Whether an inbox of this database can be expected to have keys in time.
-- $1: the inbox; $2: seconds; $3: whether the inbox may be unknown; $4: this database, as it is
-- called. Index: inbox_scope_pkey. Locking: none.
SELECT {schema}.check_expected_inbox($1::text, $2::float8, $3::boolean, $4::text)
