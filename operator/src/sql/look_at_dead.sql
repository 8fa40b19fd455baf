-- A dead message as it is to be edited, with the digest that an edit names.
-- $1: its key. Index: parked_key. Locking: none; edit_dead.sql compares the digest.
SELECT p.lane, p.id, p.headers::text AS headers, p.payload, {schema}.content_digest(p.headers, p.payload) AS seen
FROM {schema}.parked AS p
WHERE p.key = $1 AND p.dead_at IS NOT NULL
ORDER BY p.id DESC
LIMIT 1
