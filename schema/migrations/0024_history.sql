-- Relays note each minute here, for eight days, so that charts outlive relays and consoles.
--
-- A relay writes a row about once a minute if streams have stored messages of it. The leader always
-- writes one, and adds how the database stands. Rows of one minute add up.

CREATE TABLE {schema}.history (
  at             timestamptz NOT NULL DEFAULT clock_timestamp(),
  relay          uuid NOT NULL,
  version        text NOT NULL,
  leads          boolean NOT NULL,
  seconds        double precision NOT NULL,
  stored         bigint NOT NULL,
  stored_median  double precision,
  stored_p99     double precision,
  subjects       text[] COLLATE "C" NOT NULL,
  counts         bigint[] NOT NULL,
  lag_seconds    double precision,
  backlog        bigint,
  parked         bigint,
  dead           bigint,
  delayed        bigint,
  failing        bigint,
  dead_letters   bigint,
  sampled        bigint,
  handled        bigint,
  handled_median double precision,
  handled_p99    double precision,
  CONSTRAINT history_pkey PRIMARY KEY (at, relay),
  CONSTRAINT history_subjects CHECK (cardinality(subjects) = cardinality(counts) AND cardinality(subjects) <= 21)
);
COMMENT ON TABLE {schema}.history IS 'The minutes of the last eight days: messages that relays had stored, and how the database stood.';
COMMENT ON COLUMN {schema}.history.at IS 'The end of the time that the row is of; seconds is its length.';
COMMENT ON COLUMN {schema}.history.leads IS 'This relay was the leader, and wrote how the database stood; NULL in other rows.';
COMMENT ON COLUMN {schema}.history.stored_median IS 'Seconds from the enqueuing of a message until a stream had stored it: half of them took no longer, and 99 of 100 no longer than stored_p99.';
COMMENT ON COLUMN {schema}.history.subjects IS 'Twenty subjects, and how many messages of each were stored; those of all others stand last, under an empty name.';
COMMENT ON COLUMN {schema}.history.sampled IS 'Messages stored in the minute before that were looked for in the inboxes of this database; handled says how many one had handled, and handled_median and handled_p99 how many seconds after their enqueuing.';

-- The inboxes of this database, each of a scope and a tenant, up to a limit.
CREATE FUNCTION {schema}.inbox_places(most integer) RETURNS TABLE (scope text, tenant text)
LANGUAGE sql STABLE ROWS 10 SET search_path = pg_catalog, pg_temp AS $$
  WITH RECURSIVE found AS (
    (
      SELECT i.scope, i.tenant, 1 AS place
      FROM {schema}.inbox AS i
      ORDER BY i.scope, i.tenant
      LIMIT 1
    )
    UNION ALL
    SELECT next.scope, next.tenant, f.place + 1
    FROM found AS f
    CROSS JOIN LATERAL (
      SELECT i.scope, i.tenant
      FROM {schema}.inbox AS i
      WHERE (i.scope, i.tenant) > (f.scope, f.tenant)
      ORDER BY i.scope, i.tenant
      LIMIT 1
    ) AS next
    WHERE f.place < $1
  )
  SELECT f.scope::text, f.tenant::text FROM found AS f
$$;
COMMENT ON FUNCTION {schema}.inbox_places IS 'The inboxes of this database, each of a scope and a tenant, from one to the next by the index, up to a limit.';
