-- The business write of `effect.sql`, through any driver: it answers a row of texts.
-- $1 customer; $2 cents. Index: the primary key. Locking: none.
INSERT INTO effect (customer, cents)
VALUES ($1::bigint, $2::bigint)
RETURNING id::text
