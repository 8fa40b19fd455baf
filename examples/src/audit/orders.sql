-- All orders, for the audit. No parameters. Index: none, the whole table is read. Locks: none.
SELECT id, customer, number, cents
FROM orders
ORDER BY id
