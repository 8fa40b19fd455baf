-- Have a saga go on as if a step that waits were done, or undone, and record it. Columns are those
-- of retry_saga.sql.
-- $1: the saga's id; $2: the step; $3: operator; $4: note; $5: the reply as JSON, or NULL.
-- Index: saga_pkey, saga_step_pkey, inside the function. Locking: the saga's row. Error OB009 when
-- the step does not wait any more, OB011 when a later step needs a reply that is not given.
SELECT command, is_discarded FROM {schema}.skip_saga_step_as($1, $2, $3, $4, $5::text::jsonb)
