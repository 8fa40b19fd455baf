-- Delete a copy, even if sessions are still connected to it. {copy}: its name, quoted. No index.
-- Locking: sessions that are left are ended.
DROP DATABASE IF EXISTS {copy} WITH (FORCE)
