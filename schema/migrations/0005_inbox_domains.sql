-- Types that carry the limits of the inbox's columns. As CHECK constraints of the table they were parsed anew for every
-- statement that inserts a row, which took more time than the insertion itself; a domain's are kept ready by the session.

CREATE DOMAIN {schema}.inbox_name AS text CONSTRAINT inbox_name_size CHECK (octet_length(VALUE) BETWEEN 1 AND 255);
CREATE DOMAIN {schema}.inbox_tenant AS text CONSTRAINT inbox_tenant_size CHECK (octet_length(VALUE) <= 255);
CREATE DOMAIN {schema}.inbox_fingerprint AS bytea CONSTRAINT inbox_fingerprint_size CHECK (octet_length(VALUE) = 32);
CREATE DOMAIN {schema}.inbox_status AS text
  CONSTRAINT inbox_status CHECK (VALUE IN ('completed', 'rejected', 'dead'));
CREATE DOMAIN {schema}.inbox_outcome AS bytea CONSTRAINT inbox_outcome_size CHECK (octet_length(VALUE) <= 1048576);

ALTER TABLE {schema}.inbox
  DROP CONSTRAINT inbox_scope_size,
  DROP CONSTRAINT inbox_tenant_size,
  DROP CONSTRAINT inbox_key_size,
  DROP CONSTRAINT inbox_fingerprint_size,
  DROP CONSTRAINT inbox_status,
  DROP CONSTRAINT inbox_outcome_size,
  ALTER COLUMN scope TYPE {schema}.inbox_name,
  ALTER COLUMN tenant TYPE {schema}.inbox_tenant,
  ALTER COLUMN key TYPE {schema}.inbox_name,
  ALTER COLUMN fingerprint TYPE {schema}.inbox_fingerprint,
  ALTER COLUMN status TYPE {schema}.inbox_status,
  ALTER COLUMN outcome TYPE {schema}.inbox_outcome;
