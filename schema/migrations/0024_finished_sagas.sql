-- What finished lately, by type and state, is counted from an index alone. It is built beside the
-- orchestrators, and takes the place and the name of the one that has the times only.
-- Beforehand: saga_finished_type_state ON saga
CREATE INDEX CONCURRENTLY saga_finished_type_state ON {schema}.saga (finished_at, type, state)
  WHERE finished_at IS NOT NULL;
-- Then:
DROP INDEX {schema}.saga_finished_at;
ALTER INDEX {schema}.saga_finished_type_state RENAME TO saga_finished_at;
