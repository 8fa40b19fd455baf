-- Keys compare by their bytes, whatever the database's collation: the keys below `key:` then lie
-- together in the unique index, where `oncebox trace` finds them, and an operating system that
-- sorts differently after an upgrade cannot break the index that keeps keys unique.
--
-- The new index is built beside producers. (While it is being built, two transactions that enqueue
-- the same key at the same moment may fail with 23505 instead of waiting for each other; either can
-- be repeated.) Then its lock lasts for milliseconds, however many rows there are: PostgreSQL keeps
-- an index whose collation stays as it is, and the grammar of the keys, which no row has changed,
-- is checked by the next migration, beside producers as well.
-- Beforehand: message_key_bytes ON message
CREATE UNIQUE INDEX CONCURRENTLY message_key_bytes ON {schema}.message (key COLLATE "C");
-- Then:
ALTER TABLE {schema}.message
  DROP CONSTRAINT message_key_unique,
  DROP CONSTRAINT message_key_grammar;
ALTER TABLE {schema}.message ALTER COLUMN key TYPE text COLLATE "C";
ALTER TABLE {schema}.message
  ADD CONSTRAINT message_key_unique UNIQUE USING INDEX message_key_bytes,
  ADD CONSTRAINT message_key_grammar CHECK ({schema}.check_key(key)) NOT VALID;
