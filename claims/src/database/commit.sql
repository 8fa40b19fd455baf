-- Commit the transaction that has claimed the key, and no other. A handler that sends ROLLBACK and
-- BEGIN by itself loses the claim, and its later writes would be committed without a key: CLOSE
-- fails there, since the cursor of `begin.sql` has ended with its transaction. It also fails in a
-- transaction that an error aborted, which COMMIT would answer with a silent ROLLBACK, and outside
-- of a transaction. Then COMMIT is never reached. A handler must not send CLOSE ALL.
-- No parameters, no index. Locking: releases everything, the key's advisory lock after the row is
-- visible.
CLOSE oncebox_claim;
COMMIT
