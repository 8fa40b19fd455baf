-- Messages that a full stream refuses, or that no stream takes, wait together: of those that wait for
-- the same a few are tried, and none of the others before one of these is stored. A relay that does
-- not know the column finds a due time in every row, some hours away.

ALTER TABLE {schema}.parked ADD COLUMN waits_for text COLLATE "C";
