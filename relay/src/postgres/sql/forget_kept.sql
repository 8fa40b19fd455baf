-- Forget a batch of the rows that operators discarded more than a day ago.
-- Index: kept_age. Locking: the rows that go; an undo waits, and then finds them gone.
SELECT {schema}.forget_kept()
