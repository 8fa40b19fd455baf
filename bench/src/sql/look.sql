-- Read one row by its key: the reference of the HTTP bench. $1 id. Index: effect_pkey. Locks
-- nothing.
SELECT customer, cents
FROM effect
WHERE id = $1
