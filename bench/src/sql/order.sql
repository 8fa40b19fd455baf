-- Place an order. $1 its number, $2 cents.
INSERT INTO orders (id, cents)
VALUES ($1, $2)
