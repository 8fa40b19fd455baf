-- Fail, and abort the transaction, unless it is still the one that was begun, see `begin.sql`.
-- No parameters, no index. Locking: none.
CLOSE oncebox_claim;
DECLARE oncebox_claim CURSOR FOR SELECT
