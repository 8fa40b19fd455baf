-- Note which segments of the log hold no message that is due.
-- Locking: the maintenance row is locked by claim_maintenance.sql; see 0013_segments.sql.
SELECT {schema}.drain_segments()
