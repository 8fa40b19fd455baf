-- The line of a dead letter, for 0023_lines.sql, which builds an index of it beside consumers.

ALTER TABLE {schema}.dead_letter ADD COLUMN ordering_key text COLLATE "C";
COMMENT ON COLUMN {schema}.dead_letter.ordering_key IS 'The ordering key of the messages that wait for this one; NULL if none ever wait.';
