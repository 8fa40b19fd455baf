-- Renew a lease; also before the writes of an owner are committed, so that no other process can
-- have taken over by then. Continues `held.sql`.
-- Parameters, index and locking: those of `held.sql`. No row: the lease is lost.
SELECT
FROM held
