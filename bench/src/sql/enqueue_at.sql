-- Enqueue messages $1 to $2, for a time in an hour, with payloads of $3 bytes. Locks: those of the
-- INSERTs in enqueue_at. Index: none is read.
SELECT count({schema}.enqueue_at(
  'delayed-' || n, 'bench.' || n % 16, convert_to(rpad('', $3::int, 'x'), 'UTF8'), clock_timestamp() + interval '1 hour'
))
FROM generate_series($1::bigint, $2::bigint) AS n
