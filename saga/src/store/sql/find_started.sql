-- Find the saga that has a business id, or a key.
-- $1: type; $2: business id; $3: key; $4: a hash of the data, as start.sql takes it.
-- Returns id, key, and whether it has this business id and began with the same data; the one with
-- the business id first. Index: saga_business_id_unique, saga_key_unique. Locking: none.
SELECT s.id, s.key, s.type = $1 AND s.business_id = $2 AS is_same_id,
       s.began_with = $4::bytea AS is_same_data
FROM {schema}.saga AS s
WHERE (s.type = $1 AND s.business_id = $2) OR s.key = $3
ORDER BY is_same_id DESC
LIMIT 1
