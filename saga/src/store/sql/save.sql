-- Set a savepoint before a saga is written that was refused before, perhaps. No parameters.
-- Index: none. Locking: none.
SAVEPOINT oncebox_saga
