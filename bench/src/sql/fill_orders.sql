-- Enqueue messages $1 to $2 of the backlog with orders of about 1,000 bytes of JSON. Locks: those
-- of the INSERT in enqueue_all. Index: none is read.
SELECT count(*)
FROM {schema}.enqueue_all(
  ARRAY(SELECT gen_random_uuid()::text FROM generate_series($1::bigint, $2::bigint)),
  ARRAY(SELECT 'bench.orders.' || n % 16 FROM generate_series($1::bigint, $2::bigint) AS n),
  ARRAY(
    SELECT convert_to(json_build_object(
      'order', n,
      'customer', gen_random_uuid(),
      'placed_at', clock_timestamp(),
      'currency', 'EUR',
      'items', (SELECT json_agg(json_build_object('sku', format('item-%s', n * i), 'count', i, 'cents', 100 * i, 'gift', false))
                FROM generate_series(1, 12) AS i),
      'note', rpad('', 120, 'x')
    )::text, 'UTF8')
    FROM generate_series($1::bigint, $2::bigint) AS n
  )
)
