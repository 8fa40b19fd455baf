-- Undo all writes since save.sql; the saga's row stays locked. No parameters.
-- Index: none. Locking: none.
ROLLBACK TO SAVEPOINT oncebox_saga
