-- The handler's effect, the same with and without the inbox. $1 customer, $2 cents. Locks nothing
-- that others want.
INSERT INTO effect (customer, cents)
VALUES ($1, $2)
