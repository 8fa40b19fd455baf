-- A dead letter as it is to be edited, with the digest that an edit names.
-- $1: its id. Index: dead_letter_pkey. Locking: none; edit_letter.sql compares the digest.
SELECT d.id, d.headers::text AS headers, d.payload, {schema}.content_digest(d.headers, d.payload) AS seen
FROM {schema}.dead_letter AS d
WHERE d.id = $1
