-- Give a dead message other headers and another payload, under a new key, make it due, and record
-- it: 0027_edit.sql has the function.
-- $1: its lane; $2: its id; $3: headers; $4: payload; $5: digest of the shown row; $6: operator;
-- $7: note. Index: parked_pkey, message_pkey, audit_key. Locking: maintenance, then the lane.
SELECT {schema}.edit_dead($1, $2, $3::text::jsonb, $4, $5, $6, $7) AS key
