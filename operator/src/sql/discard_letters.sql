-- Delete dead letters, and record it. Their keys stay settled as dead.
-- $1: ids; $2: operator; $3: note. Index: dead_letter_pkey. Locking: the rows until the end of the
-- transaction; another operator waits and finds none.
SELECT id FROM {schema}.discard_letters($1, $2, $3) AS t (id)
