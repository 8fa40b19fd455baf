-- Keys compare by their bytes, whatever the database's collation: the keys below `key:` then lie together in the unique
-- index, where `oncebox trace` finds them, and an operating system that sorts differently after an upgrade cannot
-- break the index that keeps keys unique. Reads the table once and builds that index again; nobody enqueues meanwhile.
ALTER TABLE {schema}.message ALTER COLUMN key TYPE text COLLATE "C";
