-- Say that this consumer exists, and how long it keeps keys and dead letters.
-- $1 scope; $2 retention in seconds, or NULL for ever; $3 the same for dead letters, or NULL.
-- Index: inbox_scope_pkey, inside the function. Locking: the scope's row, for this statement.
SELECT {schema}.register_scope(
  $1::text,
  make_interval(secs => $2::double precision),
  make_interval(secs => $3::double precision)
)::text
