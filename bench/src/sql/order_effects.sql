-- The effects of a set of orders. $1 their numbers; $2 cents; arrays of one length.
INSERT INTO effect (order_id, cents)
SELECT * FROM unnest($1::bigint[], $2::bigint[])
