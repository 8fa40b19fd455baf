-- Have a saga go on as if a step that waits were done, or undone, and record it. Columns are those
-- of retry_saga.sql.
-- $1: the saga's id; $2: the step; $3: operator; $4: note.
-- Index: saga_pkey, saga_step_pkey, inside the function. Locking: the saga's row. Error OB009 when
-- the step does not wait any more.
SELECT command, is_discarded FROM {schema}.skip_saga_step_as($1, $2, $3, $4)
