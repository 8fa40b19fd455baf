-- Limits of the inbox's columns that cost next to nothing. A domain's CHECK is made ready anew for each statement: six of
-- them were a sixth of what an inbox adds to a transaction. The lengths of names stay PostgreSQL's to check, as those of
-- their types. The others are the inbox's, which alone writes here: a fingerprint is an array of 32 bytes there, a status
-- one of an enumeration's, an outcome is measured before it is sent, and what is read is checked again.
--
-- Rewrites the inbox, which consumers wait for. First what the migration before has left to be checked: producers go on.
ALTER TABLE {schema}.message VALIDATE CONSTRAINT message_key_grammar;

ALTER TABLE {schema}.inbox
  ALTER COLUMN scope TYPE varchar(255),
  ALTER COLUMN tenant TYPE varchar(255),
  ALTER COLUMN key TYPE varchar(255),
  ALTER COLUMN fingerprint TYPE bytea,
  ALTER COLUMN status TYPE text,
  ALTER COLUMN outcome TYPE bytea;

DROP DOMAIN {schema}.inbox_name, {schema}.inbox_tenant, {schema}.inbox_fingerprint, {schema}.inbox_status, {schema}.inbox_outcome;
