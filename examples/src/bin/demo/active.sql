-- The process of the payment service that did something last. No parameters.
-- Index: none, a row a process. Locks: none.
SELECT name
FROM process
ORDER BY updated_at DESC
LIMIT 1
