-- Bring back all that a discard took out, or nothing: 0025_undo.sql has the function.
-- $1: the id of one of its rows in the audit; $2: operator; $3: note. Index: as undo_rows.sql.
-- Locking: the lanes of its messages in their order, then the rows that are kept: of two at once,
-- the second finds nothing.
SELECT id FROM {schema}.undo_discard($1, $2, $3) AS t (id)
