-- Commit. CLOSE ALL is the last statement before it on purpose: in a transaction that an error
-- aborted it fails, and so COMMIT, which would answer such a transaction with a silent ROLLBACK, is
-- never reached. It was chosen as the statement that costs least: the cursors that it closes would
-- end with the transaction. Outside of a transaction, when a handler ended it by itself, COMMIT AND
-- CHAIN fails. AND CHAIN leaves an empty transaction behind, with the same characteristics, for the
-- next message or for the ROLLBACK of the driver's transaction object.
-- No parameters, no index. Locking: releases everything, the key's advisory lock after the row is
-- visible.
CLOSE ALL;
COMMIT AND CHAIN
