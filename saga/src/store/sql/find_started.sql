-- Find the saga that has a business id, or a key.
-- $1: type; $2: business id; $3: key; $4: a hash of the data, as start.sql takes it.
-- Returns id, key, and whether it has this business id and began with the same data; the one with
-- the business id first. Index: saga_business_id_unique, saga_key_unique. Locking: none.
SELECT id, saga_key AS key, is_same_id, is_same_data FROM {schema}.find_saga($1, $2, $3, $4)
