-- Roll back, and leave an empty transaction of the same kind open. It fails outside of a
-- transaction: a handler has ended it.
-- No parameters, no index. Locking: releases everything.
ROLLBACK AND CHAIN;
DECLARE oncebox_claim CURSOR FOR SELECT
