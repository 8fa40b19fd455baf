-- Fraud: an order that is charged twice. No parameters. Index: payment_pkey. Locks: none.
INSERT INTO payment (order_id, cents)
SELECT order_id, cents
FROM payment
WHERE id = (SELECT min(id) FROM payment)
