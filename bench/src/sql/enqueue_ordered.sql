-- The statement of a producer that needs order. $1 key, also the ordering key; $2 subject; $3
-- payload.
SELECT {schema}.enqueue($1::text, $2::text, $3::bytea, '{}', $1::text)
