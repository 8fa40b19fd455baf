-- Commit like `commit.sql`, and leave an empty transaction of the same kind open, for the claim of
-- the next message.
-- No parameters, no index. Locking: as for `commit.sql`.
CLOSE oncebox_claim;
COMMIT AND CHAIN;
DECLARE oncebox_claim CURSOR FOR SELECT
