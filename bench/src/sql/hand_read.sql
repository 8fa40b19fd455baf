-- Lock a saga of one's own, and read its data. $1 its id. Index: hand_saga_pkey. Locking: the row.
SELECT s.data::text
FROM hand_saga AS s
WHERE s.id = $1
FOR UPDATE
