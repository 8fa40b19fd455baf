-- The statement of a producer with a shared ordering key for one message in five. $1 key, a number;
-- $2 subject; $3 payload.
SELECT {schema}.enqueue($1::text, $2::text, $3::bytea, '{}', CASE WHEN $1::text ~ '[05]$' THEN 'hot' ELSE $1::text END)
