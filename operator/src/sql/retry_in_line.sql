-- Have a dead letter run again that messages of its ordering key may wait for, and record it.
-- 0023_lines.sql has the function. False: it is of no line, or gone.
-- $1: its id; $2: operator; $3: note. Index: dead_letter_pkey, inbox_pkey, inbox_behind_line.
-- Locking: the letter, its key and the head of its line, until the end of the transaction.
SELECT {schema}.retry_in_line($1, $2, $3)
