-- A hint that cannot fail a producer, and what `migrate` needs to repair tables that were emptied.

-- After an enqueue: wake a relay that sleeps; see 0014_access.sql. A NOTIFY into a full queue fails
-- the producer's COMMIT, and a listener of any database of the cluster that sleeps in a transaction
-- fills it: above half of the queue nobody is notified, and the relay polls. Asking for the usage
-- also frees what the queue keeps after its slowest listener has gone.
CREATE OR REPLACE FUNCTION {schema}.wake_relay() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM setval('{schema}.relay_asleep', 0);
  IF current_setting('max_prepared_transactions') = '0' AND pg_notification_queue_usage() < 0.5 THEN
    PERFORM pg_notify('{name}', '');
  END IF;
END $$;

-- How many lanes there are, whatever the table holds.
DO $do$
BEGIN
  EXECUTE format('CREATE FUNCTION {schema}.lane_count() RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN %s',
                 (SELECT count(*) FROM {schema}.lane));
END $do$;
COMMENT ON FUNCTION {schema}.lane_count IS 'How many lanes the outbox was installed with; table lane has a row for each.';

-- As enqueue_json(): PostgreSQL writes the JSON, in UTF-8 whatever the database's encoding is. A JSON
-- text that is given as bytea is read as one, with its own backslashes.
CREATE FUNCTION {schema}.enqueue_json_at(
  key text, subject text, payload jsonb, not_before timestamptz, headers jsonb DEFAULT '{}', ordering_key text DEFAULT NULL
) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
RETURN {schema}.enqueue_at(key, subject, convert_to(payload::text, 'UTF8'), not_before, headers, ordering_key);
COMMENT ON FUNCTION {schema}.enqueue_json_at IS 'enqueue_at() with a payload in JSON.';
