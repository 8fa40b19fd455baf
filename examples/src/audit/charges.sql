-- All charges in the order of their ids, which for each customer is the order of their commits (see
-- book.sql). No parameters. Index: charge_pkey, the whole table is read. Locks: none.
SELECT order_id, customer, number, cents
FROM charge
ORDER BY id
