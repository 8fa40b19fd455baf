-- Ask for a new attempt at the waiting steps of a saga, and record it: 0010_sagas.sql has the
-- function. Returns a row for each audited one: the last command, and whether its letter was
-- discarded; NULL for a command that did not die here. See `saga/src/command.rs` for its key.
-- $1: its id; $2: a step, NULL for all that wait; $3: operator; $4: note.
-- Index: saga_pkey, saga_step_pkey; dead_letter has few rows. Locking: the saga's row, the letters.
-- Error OB009 when nothing waits any more.
SELECT command, is_discarded FROM {schema}.retry_saga_as($1, $2, $3, $4)
