-- A producer's statement. $1 key, $2 subject, $3 payload.
SELECT {schema}.enqueue($1::text, $2::text, $3::bytea)
