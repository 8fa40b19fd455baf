-- Text that an index orders is compared by its bytes. In a database's own collation the order comes from the operating
-- system's C library, and a newer one may order differently: an index that was built before then misses rows. In the
-- inbox that is a key that counts as new, and an effect done twice. Rewrites no table, builds the indexes again.
ALTER TABLE {schema}.inbox
  ALTER COLUMN scope TYPE varchar(255) COLLATE "C",
  ALTER COLUMN tenant TYPE varchar(255) COLLATE "C",
  ALTER COLUMN key TYPE varchar(255) COLLATE "C";

ALTER TABLE {schema}.inbox_claim
  ALTER COLUMN scope TYPE varchar(255) COLLATE "C",
  ALTER COLUMN tenant TYPE varchar(255) COLLATE "C",
  ALTER COLUMN key TYPE varchar(255) COLLATE "C";

ALTER TABLE {schema}.inbox_effect
  ALTER COLUMN scope TYPE varchar(255) COLLATE "C",
  ALTER COLUMN tenant TYPE varchar(255) COLLATE "C",
  ALTER COLUMN key TYPE varchar(255) COLLATE "C",
  ALTER COLUMN step TYPE text COLLATE "C";

ALTER TABLE {schema}.inbox_scope
  ALTER COLUMN scope TYPE text COLLATE "C";

ALTER TABLE {schema}.dead_letter
  ALTER COLUMN scope TYPE text COLLATE "C",
  ALTER COLUMN stream TYPE text COLLATE "C";

ALTER TABLE {schema}.consumer_position
  ALTER COLUMN stream TYPE text COLLATE "C",
  ALTER COLUMN durable TYPE text COLLATE "C";

ALTER TABLE {schema}.parked
  ALTER COLUMN ordering_key TYPE text COLLATE "C";

ALTER TABLE {schema}.audit
  ALTER COLUMN key TYPE text COLLATE "C";
