-- Sabotage: a charge that never happened. No parameters. Index: charge_pkey. Locks: the row
--   deleted.
DELETE FROM charge
WHERE id = (SELECT max(id) FROM charge)
