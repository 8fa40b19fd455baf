-- Strict order of consumers: one process consumes, the others stand by, and the one that takes over
-- continues where everything before is settled. inbox/src/consumer/strict_order.rs says why that
-- suffices.

-- Whether this transaction may consume, alone, until it ends. It stays open and idle: its process
-- asks something of it more often than every `pause`, and one that is suspended, or cut off, loses
-- the right after that time, since PostgreSQL ends its session. At READ COMMITTED it holds back no
-- vacuum. The setting of transaction_timeout exists from PostgreSQL 17 on.
CREATE FUNCTION {schema}.lead_consumer(
  scope text, stream text, durable text, pause interval DEFAULT '30 seconds'
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  lock bigint;
BEGIN
  IF lead_consumer.stream IS NULL OR lead_consumer.durable IS NULL OR lead_consumer.pause IS NULL
     OR extract(epoch FROM lead_consumer.pause) NOT BETWEEN 1 AND 3600 THEN
    RAISE EXCEPTION 'stream %, durable % or pause % is missing, or the pause is not 1 second to 1 hour',
      lead_consumer.stream, lead_consumer.durable, lead_consumer.pause
      USING ERRCODE = 'OB011', HINT = 'They are those of the JetStream consumer; a process that is silent for the pause loses the right to consume.';
  END IF;
  PERFORM {schema}.check_inbox_names(lead_consumer.scope, '');
  SELECT ('x' || encode(substring(sha256(
    int8send(14) || 'oncebox lead 1'::bytea
    || string_agg(int8send(octet_length(convert_to(f.field, 'UTF8'))) || convert_to(f.field, 'UTF8'), ''::bytea ORDER BY f.place)
  ) FROM 1 FOR 8), 'hex'))::bit(64)::bigint INTO lock
  FROM unnest(ARRAY['{name}', lead_consumer.scope, lead_consumer.stream, lead_consumer.durable])
    WITH ORDINALITY AS f (field, place);
  PERFORM set_config('idle_in_transaction_session_timeout', (extract(epoch FROM lead_consumer.pause) * 1000)::bigint::text, true),
          CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL THEN set_config('transaction_timeout', '0', true) END;
  RETURN pg_try_advisory_xact_lock(lock);
END $$;
COMMENT ON FUNCTION {schema}.lead_consumer IS 'Whether this transaction may consume, alone, in strict order; asked again in it until it may. The right ends with the transaction, which stays open: send a statement in it more often than every pause, for PostgreSQL ends its session otherwise.';

-- When a stream was created, as one text, in any form that a client library gives it.
CREATE FUNCTION {schema}.stream_time(created text) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN extract(epoch FROM created::timestamptz)::text;

-- Where a strictly ordered consumer that JetStream does not have goes on: NULL for one that has
-- never been continued.
CREATE FUNCTION {schema}.consumer_place(stream text, durable text, stream_created text) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT p.next_sequence
  FROM {schema}.consumer_position AS p
  WHERE p.stream = $1 AND p.durable = $2 AND p.stream_created = {schema}.stream_time($3)
$$;
COMMENT ON FUNCTION {schema}.consumer_place IS 'The sequence from which a strictly ordered consumer goes on that JetStream does not have: NULL for one that has never been continued.';

-- Records where it goes on, before it is deleted and created again there.
CREATE FUNCTION {schema}.continue_consumer(
  stream text, durable text, stream_created text, next_sequence bigint, took_over boolean
) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  counted integer := coalesce(continue_consumer.took_over, false)::integer;
BEGIN
  IF num_nulls(continue_consumer.stream, continue_consumer.durable, continue_consumer.stream_created) > 0
     OR coalesce(continue_consumer.next_sequence, 0) < 1 THEN
    RAISE EXCEPTION 'stream %, durable %, its creation % or the next sequence % is missing, or the sequence is below 1',
      continue_consumer.stream, continue_consumer.durable, continue_consumer.stream_created, continue_consumer.next_sequence
      USING ERRCODE = 'OB011', HINT = 'The next sequence is the one behind the acknowledgement floor of the JetStream consumer.';
  END IF;
  INSERT INTO {schema}.consumer_position AS p (stream, durable, stream_created, next_sequence, takeovers)
  VALUES (continue_consumer.stream, continue_consumer.durable, {schema}.stream_time(continue_consumer.stream_created),
          continue_consumer.next_sequence, counted)
  ON CONFLICT ON CONSTRAINT consumer_position_pkey DO UPDATE
  SET stream_created = excluded.stream_created,
      next_sequence = excluded.next_sequence,
      takeovers = counted + CASE
        WHEN p.stream_created = excluded.stream_created AND p.next_sequence = excluded.next_sequence THEN p.takeovers
        ELSE 0
      END,
      updated_at = clock_timestamp()
  RETURNING p.takeovers INTO counted;
  RETURN counted;
END $$;
COMMENT ON FUNCTION {schema}.continue_consumer IS 'Records, before a strictly ordered consumer is deleted and created again, from which sequence it goes on; returns how many processes in a row took over there. The first message counts as delivered that often before, and every message that the old consumer delivered as delivered once: record their runs with begin_attempt().';
