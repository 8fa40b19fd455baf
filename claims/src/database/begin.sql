-- Begin a transaction that may claim a key. A claim knows it by DEFERRABLE, see `claim.sql`, which
-- means nothing else to a transaction that writes. The cursor ends with the transaction: by it,
-- `commit.sql` knows at the end whether this is still the transaction that has claimed the key.
-- {level}: isolation level. No index. Locking: none.
BEGIN ISOLATION LEVEL {level}, DEFERRABLE;
DECLARE oncebox_claim CURSOR FOR SELECT
