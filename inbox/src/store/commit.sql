-- Commit. SAVEPOINT is the last statement before it on purpose: in a transaction that an error aborted it fails, and so
-- COMMIT, which would answer such a transaction with a silent ROLLBACK, is never reached; outside a transaction, when
-- a handler ended it by itself, it fails as well. AND CHAIN leaves an empty transaction behind, with the same
-- characteristics, for the next message or for the ROLLBACK of the driver's transaction object.
-- No parameters, no index. Locking: releases everything, the key's advisory lock after the row is visible.
SAVEPOINT oncebox_settled;
COMMIT AND CHAIN
