-- Forget what operators discarded more than a day ago, a batch.
-- Index: kept_age. Locking: the rows that go; an undo waits, and then finds them gone.
SELECT {schema}.forget_kept()
