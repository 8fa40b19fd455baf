-- Fraud: the reservation of an order that is undone is not released. No parameters.
-- Index: movement_pkey. Locks: the row deleted.
DELETE FROM movement
WHERE id = (SELECT max(id) FROM movement WHERE count < 0)
