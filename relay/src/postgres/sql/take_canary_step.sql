-- Judge the retried rows of a canary, and retry its next row. With a letter, publish it, then
-- commit.
-- $1: its id. Index: canary_row_pkey, canary_row_next, dead_letter_key, inbox_pkey, parked_pkey.
-- Locking: the canary, skipped when another relay has it; then the lane, or the letter and its key.
SELECT moved, letter, outbox, key, subject, headers, payload, number
FROM {schema}.take_canary_step($1)
