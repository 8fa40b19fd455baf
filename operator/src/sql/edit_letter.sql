-- Take a dead letter out, with other headers and another payload, under a new key, and record it;
-- the caller publishes the returned message and then commits: 0027_edit.sql has the function.
-- $1: its id; $2: headers; $3: payload; $4: digest of the shown row; $5: operator; $6: note.
-- Index: dead_letter_pkey, inbox_pkey, audit_key. Locking: the letter's row until the end of the
-- transaction; another operator waits and finds none.
SELECT outbox, key, subject, edited_headers AS headers, edited_payload AS payload, number, is_in_line
FROM {schema}.edit_letter($1, $2::text::jsonb, $3, $4, $5, $6)
