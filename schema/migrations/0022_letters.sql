-- The line of a dead letter, for 0023_lines.sql, which builds an index of it beside consumers.

ALTER TABLE {schema}.dead_letter ADD COLUMN ordering_key text COLLATE "C";
COMMENT ON COLUMN {schema}.dead_letter.ordering_key IS 'The line that waits behind this message; NULL for one that nothing waits behind.';
