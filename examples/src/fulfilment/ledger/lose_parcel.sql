-- Fraud: a parcel that was never sent. No parameters. Index: parcel_pkey. Locks: the row deleted.
DELETE FROM parcel
WHERE id = (SELECT max(id) FROM parcel)
