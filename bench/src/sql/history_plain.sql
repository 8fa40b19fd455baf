-- As many rows in the plain table as the log has, random keys in their order. $1: how many; $2:
-- bytes of a payload. Locks: those of the INSERT. Index: none is read.
INSERT INTO plain (key, payload)
SELECT m.key, convert_to(rpad('', $2::int, 'x'), 'UTF8')
FROM (
  SELECT gen_random_uuid() AS key
  FROM generate_series(1, $1::bigint)
  ORDER BY 1
) AS m
