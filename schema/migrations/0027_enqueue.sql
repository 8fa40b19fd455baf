-- enqueue() costs PostgreSQL less: it draws the id before the INSERT, which then returns nothing, and
-- reads the relay's mark by a function instead of a query. pg_sequence_last_value() is NULL as long
-- as no relay has ever set the mark.
CREATE OR REPLACE FUNCTION {schema}.enqueue(
  key text, subject text, payload bytea, headers jsonb DEFAULT '{}', ordering_key text DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  new_id bigint;
BEGIN
  IF enqueue.key IS NULL OR enqueue.subject IS NULL OR enqueue.payload IS NULL THEN
    PERFORM {schema}.refuse_null(enqueue.key IS NULL, enqueue.subject IS NULL);
  END IF;
  -- A transaction that a crash can undo must not be seen by the relay: make its commit durable.
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  FOR attempt IN 1 .. 3 LOOP
    new_id := nextval('{schema}.message_id_seq');
    INSERT INTO {schema}.message (id, lane, key, subject, ordering_key, headers, payload)
    OVERRIDING SYSTEM VALUE
    VALUES (new_id, {schema}.lane_of(coalesce(enqueue.ordering_key, enqueue.key)), enqueue.key, enqueue.subject,
            enqueue.ordering_key, coalesce(enqueue.headers, '{}'), enqueue.payload)
    ON CONFLICT ON CONSTRAINT message_key_unique DO NOTHING;
    IF FOUND THEN
      -- Not before the INSERT: without a transaction id this transaction is one that a relay, which
      -- sets its mark and then looks who is still at work, would not see.
      IF pg_sequence_last_value('{schema}.relay_asleep') = 1 THEN
        PERFORM {schema}.wake_relay();
      END IF;
      RETURN new_id;
    END IF;
    -- Not found here means that retention deleted it between the two statements: insert again.
    IF {schema}.check_enqueued(enqueue.key, enqueue.subject, enqueue.payload) THEN
      RETURN NULL;
    END IF;
  END LOOP;
  RAISE EXCEPTION 'key "%" was deleted three times while it was enqueued', enqueue.key USING ERRCODE = '40001';
END $$;
