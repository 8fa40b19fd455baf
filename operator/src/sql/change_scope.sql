-- Set how long a scope keeps keys and dead letters, and its kind, and record it: 0007_leases.sql
-- has the function.
-- $1: the scope; $2: seconds for keys, NULL for ever; $3: seconds for dead letters, NULL for 90
-- days, or as long as keys; $4: kind; $5: operator; $6: note. Index: inbox_scope_pkey. Locking: the
-- scope's row.
SELECT {schema}.change_scope(
  $1, make_interval(secs => $2::double precision), make_interval(secs => $3::double precision), $4, $5, $6
)
