-- Sabotage: an order charged twice. No parameters. Index: charge_pkey. Locks: none.
INSERT INTO charge (order_id, customer, number, cents, in_order)
SELECT order_id, customer, number, cents, in_order
FROM charge
WHERE id = (SELECT min(id) FROM charge)
