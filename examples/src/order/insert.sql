-- Place an order, unless this request has placed one already.
-- Parameters: $1 request key, $2 customer, $3 cents. Returns id and number, or no row for a retried
--   request.
-- Index: orders_request_key_key, orders_customer_number_key. Locks: the customer's row is held by
--   lock_customer.sql.
INSERT INTO orders (request_key, customer, number, cents)
SELECT $1, $2, coalesce(max(placed.number), 0) + 1, $3
FROM orders AS placed
WHERE placed.customer = $2
ON CONFLICT (request_key) DO NOTHING
RETURNING id, number
