-- What finished lately, by type and state, is counted from an index alone.

DROP INDEX {schema}.saga_finished_at;
CREATE INDEX saga_finished_at ON {schema}.saga (finished_at, type, state) WHERE finished_at IS NOT NULL;
