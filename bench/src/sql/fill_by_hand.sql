-- Messages $1 to $2 with payloads of $3 bytes and a subject that begins with $4, put into the table
-- by its owner: faster than through the API, for backlogs of millions. Locks: those of the INSERT.
-- Index: none is read.
INSERT INTO {schema}.message_0 (lane, key, subject, payload)
SELECT {schema}.lane_of(m.key), m.key, $4::text || m.n % 16, convert_to(rpad('', $3::int, 'x'), 'UTF8')
FROM (SELECT n, $4::text || n AS key FROM generate_series($1::bigint, $2::bigint) AS n) AS m
