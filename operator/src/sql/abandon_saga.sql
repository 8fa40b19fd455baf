-- Give a saga up as it stands, and record it; no row where it has finished meanwhile.
-- Columns are those of retry_saga.sql.
-- $1: its id; $2: why, for the saga's row; $3: operator; $4: note.
-- Index: saga_pkey, inside the function. Locking: the saga's row.
SELECT command, is_discarded FROM {schema}.abandon_saga_as($1, $2, $3, $4)
