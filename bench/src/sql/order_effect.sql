-- The effect of an order. $1 its number, $2 cents. Locks nothing that others want.
INSERT INTO effect (order_id, cents)
VALUES ($1, $2)
