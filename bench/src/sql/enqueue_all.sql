-- Many messages in one call. $1 keys, $2 subject, $3 payload of each. Locks: those of the INSERT in
-- enqueue_all. Index: none is read.
SELECT count(*)
FROM {schema}.enqueue_all(
  $1::text[],
  array_fill($2::text, ARRAY[cardinality($1::text[])]),
  array_fill($3::bytea, ARRAY[cardinality($1::text[])])
)
