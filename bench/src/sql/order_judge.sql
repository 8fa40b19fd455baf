-- Orders without exactly one effect, effects without an order, and orders. No parameters.
SELECT count(*) FILTER (WHERE effects IS DISTINCT FROM 1 OR orders.id IS NULL), count(orders.id)
FROM orders
FULL JOIN (SELECT order_id, count(*) AS effects FROM effect GROUP BY order_id) counted ON order_id = id
