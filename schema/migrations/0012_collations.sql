-- Text that an index orders is compared by its bytes. In a database's own collation the order comes
-- from the operating system's C library, and a newer one may order differently: an index that was
-- built before then misses rows. In the inbox that is a key that counts as new, and an effect done
-- twice.
--
-- Rewrites no table. The indexes of tables that may be large are built beside everybody else; see
-- 0006. Then all tables are locked before the first is changed, and all within half a second or
-- none: so nobody waits longer behind the first of them, and PostgreSQL, which looks for deadlocks
-- after a second, finds none with a consumer that came to them in another order.
-- Beforehand: inbox_bytes ON inbox
CREATE UNIQUE INDEX CONCURRENTLY inbox_bytes ON {schema}.inbox (scope COLLATE "C", tenant COLLATE "C", key COLLATE "C");
-- Beforehand: inbox_effect_bytes ON inbox_effect
CREATE UNIQUE INDEX CONCURRENTLY inbox_effect_bytes
  ON {schema}.inbox_effect (scope COLLATE "C", tenant COLLATE "C", key COLLATE "C", step COLLATE "C");
-- Beforehand: dead_letter_bytes ON dead_letter
CREATE UNIQUE INDEX CONCURRENTLY dead_letter_bytes
  ON {schema}.dead_letter (scope COLLATE "C", stream COLLATE "C", stream_sequence, stored_at);
-- Beforehand: parked_bytes ON parked
CREATE INDEX CONCURRENTLY parked_bytes ON {schema}.parked (lane, ordering_key COLLATE "C", id)
  WHERE ordering_key IS NOT NULL AND dead_at IS NULL;
-- Beforehand: parked_dead_bytes ON parked
CREATE INDEX CONCURRENTLY parked_dead_bytes ON {schema}.parked (lane, ordering_key COLLATE "C", id)
  WHERE ordering_key IS NOT NULL AND dead_at IS NOT NULL;
-- Beforehand: audit_bytes ON audit
CREATE INDEX CONCURRENTLY audit_bytes ON {schema}.audit (key COLLATE "C");
-- Then:
SET LOCAL statement_timeout = '500ms';
LOCK TABLE {schema}.parked, {schema}.inbox, {schema}.inbox_claim, {schema}.inbox_effect, {schema}.inbox_scope,
  {schema}.dead_letter, {schema}.consumer_position, {schema}.audit IN ACCESS EXCLUSIVE MODE;
SET LOCAL statement_timeout = 0;

ALTER TABLE {schema}.inbox DROP CONSTRAINT inbox_pkey;
ALTER TABLE {schema}.inbox
  ALTER COLUMN scope TYPE varchar(255) COLLATE "C",
  ALTER COLUMN tenant TYPE varchar(255) COLLATE "C",
  ALTER COLUMN key TYPE varchar(255) COLLATE "C";
ALTER TABLE {schema}.inbox ADD CONSTRAINT inbox_pkey PRIMARY KEY USING INDEX inbox_bytes;

ALTER TABLE {schema}.inbox_claim
  ALTER COLUMN scope TYPE varchar(255) COLLATE "C",
  ALTER COLUMN tenant TYPE varchar(255) COLLATE "C",
  ALTER COLUMN key TYPE varchar(255) COLLATE "C";

ALTER TABLE {schema}.inbox_effect DROP CONSTRAINT inbox_effect_pkey;
ALTER TABLE {schema}.inbox_effect
  ALTER COLUMN scope TYPE varchar(255) COLLATE "C",
  ALTER COLUMN tenant TYPE varchar(255) COLLATE "C",
  ALTER COLUMN key TYPE varchar(255) COLLATE "C",
  ALTER COLUMN step TYPE text COLLATE "C";
ALTER TABLE {schema}.inbox_effect ADD CONSTRAINT inbox_effect_pkey PRIMARY KEY USING INDEX inbox_effect_bytes;

ALTER TABLE {schema}.inbox_scope
  ALTER COLUMN scope TYPE text COLLATE "C";

ALTER TABLE {schema}.dead_letter DROP CONSTRAINT dead_letter_once;
ALTER TABLE {schema}.dead_letter
  ALTER COLUMN scope TYPE text COLLATE "C",
  ALTER COLUMN stream TYPE text COLLATE "C";
ALTER TABLE {schema}.dead_letter ADD CONSTRAINT dead_letter_once UNIQUE USING INDEX dead_letter_bytes;

ALTER TABLE {schema}.consumer_position
  ALTER COLUMN stream TYPE text COLLATE "C",
  ALTER COLUMN durable TYPE text COLLATE "C";

DROP INDEX {schema}.parked_ordering_key, {schema}.parked_dead_ordering_key;
ALTER TABLE {schema}.parked
  ALTER COLUMN ordering_key TYPE text COLLATE "C";
ALTER INDEX {schema}.parked_bytes RENAME TO parked_ordering_key;
ALTER INDEX {schema}.parked_dead_bytes RENAME TO parked_dead_ordering_key;

DROP INDEX {schema}.audit_key;
ALTER TABLE {schema}.audit
  ALTER COLUMN key TYPE text COLLATE "C";
ALTER INDEX {schema}.audit_bytes RENAME TO audit_key;
