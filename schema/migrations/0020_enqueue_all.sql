-- enqueue_all() fails, for the caller to run its transaction again, when a key that it found is gone a
-- moment later: cancelled while it was delayed, or deleted by retention. Until now that message was
-- neither inserted nor reported. enqueue() inserts it instead.

CREATE OR REPLACE FUNCTION {schema}.enqueue_all(
  keys text[], subjects text[], payloads bytea[], headers jsonb[] DEFAULT NULL, ordering_keys text[] DEFAULT NULL
) RETURNS TABLE (key text, id bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  total integer := coalesce(cardinality(keys), 0);
  deleted_key text;
BEGIN
  IF cardinality(subjects) IS DISTINCT FROM total OR cardinality(payloads) IS DISTINCT FROM total
     OR coalesce(cardinality(headers), total) <> total OR coalesce(cardinality(ordering_keys), total) <> total THEN
    RAISE EXCEPTION 'enqueue_all takes arrays of one length: % keys, % subjects, % payloads, % headers, % ordering keys',
      total, cardinality(subjects), cardinality(payloads), cardinality(headers), cardinality(ordering_keys)
      USING ERRCODE = 'OB007';
  END IF;
  IF total > 10000 THEN
    RAISE EXCEPTION 'enqueue_all takes at most 10000 messages, not %', total USING ERRCODE = 'OB007';
  END IF;
  IF array_position(keys, NULL) IS NOT NULL OR array_position(subjects, NULL) IS NOT NULL
     OR array_position(payloads, NULL) IS NOT NULL THEN
    PERFORM {schema}.refuse_null(array_position(keys, NULL) IS NOT NULL, array_position(subjects, NULL) IS NOT NULL);
  END IF;
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
  RETURN QUERY
  WITH given AS (
    SELECT g.key, g.subject, g.payload, coalesce(g.headers, '{}') AS headers, g.ordering_key, g.n
    FROM unnest(keys, subjects, payloads, enqueue_all.headers, ordering_keys)
      WITH ORDINALITY AS g (key, subject, payload, headers, ordering_key, n)
  ),
  inserted AS (
    INSERT INTO {schema}.message AS m (lane, key, subject, ordering_key, headers, payload)
    SELECT {schema}.lane_of(coalesce(g.ordering_key, g.key)), g.key, g.subject, g.ordering_key, g.headers, g.payload
    FROM given AS g
    ORDER BY g.n
    ON CONFLICT ON CONSTRAINT message_key_unique DO NOTHING
    RETURNING m.key, m.id
  )
  -- A key that stands twice in one call gets its id at its first place.
  SELECT g.key, CASE WHEN row_number() OVER (PARTITION BY g.key ORDER BY g.n) = 1 THEN i.id END
  FROM given AS g
  LEFT JOIN inserted AS i ON i.key = g.key
  ORDER BY g.n;
  -- A new statement sees what the one above inserted or found.
  SELECT g.key INTO deleted_key
  FROM unnest(keys, subjects, payloads) AS g (key, subject, payload)
  WHERE NOT {schema}.check_enqueued(g.key, g.subject, g.payload);
  IF deleted_key IS NOT NULL THEN
    RAISE EXCEPTION 'key "%" was deleted while it was enqueued', deleted_key
      USING ERRCODE = '40001', HINT = 'Nothing was enqueued. Run the transaction again.';
  END IF;
  IF total > 0 AND (SELECT s.last_value FROM {schema}.relay_asleep AS s) = 1 THEN
    PERFORM {schema}.wake_relay();
  END IF;
END $$;
