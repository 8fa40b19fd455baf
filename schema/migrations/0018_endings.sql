-- Leased mode as functions, continued: how a claim ends (finish_leased, release_leased,
-- bury_leased). And the snoozes of every mode.

-- Replaces a claim by how it ended, and unless the key is given up forgets its effects. Those of a
-- key that is given up are kept: an operator may have the message run again. The epochs of its next
-- claim count from 1 again, so they get an epoch that no owner has: the next one must not take them
-- for its own.
-- Locking: the claim's row, until the transaction ends.
CREATE FUNCTION {schema}.end_leased(
  scope text, tenant text, key text, owner uuid, epoch bigint, status text, outcome bytea
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  WITH ended AS (
    DELETE FROM {schema}.inbox_claim AS c
    WHERE c.scope = end_leased.scope
      AND c.tenant = end_leased.tenant
      AND c.key = end_leased.key
      AND c.owner = end_leased.owner
      AND c.epoch = end_leased.epoch
      AND c.state = 'running'
    RETURNING c.scope, c.tenant, c.key, c.fingerprint, c.message_id
  )
  INSERT INTO {schema}.inbox (scope, tenant, key, fingerprint, message_id, status, outcome)
  SELECT e.scope, e.tenant, e.key, e.fingerprint, e.message_id, end_leased.status, end_leased.outcome
  FROM ended AS e;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  IF end_leased.status = 'dead' THEN
    UPDATE {schema}.inbox_effect AS e
    SET epoch = 0
    WHERE e.scope = end_leased.scope AND e.tenant = end_leased.tenant AND e.key = end_leased.key;
  ELSE
    DELETE FROM {schema}.inbox_effect AS e
    WHERE e.scope = end_leased.scope AND e.tenant = end_leased.tenant AND e.key = end_leased.key;
  END IF;
  RETURN true;
END $$;
COMMENT ON FUNCTION {schema}.end_leased IS 'A part of finish_leased() and bury_leased(), for the crate oncebox-inbox. False: the lease is lost, so roll back. It checks nothing else.';

-- Ends a claim as dead, and records the dead letter; false when the lease is lost.
CREATE FUNCTION {schema}.give_up_leased(
  scope text, tenant text, key text, owner uuid, epoch bigint, subject text, headers jsonb, payload bytea, stream text,
  stream_sequence bigint, stored_at timestamptz, deliveries bigint, reason text
) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
  IF NOT {schema}.end_leased(scope, tenant, key, owner, epoch, 'dead', convert_to(reason, 'UTF8')) THEN
    RETURN false;
  END IF;
  PERFORM {schema}.record_dead_letter(scope, tenant, key, subject, headers, payload, stream, stream_sequence, stored_at, deliveries, reason),
          {schema}.forget_tries(scope, tenant, key);
  RETURN true;
END $$;

CREATE FUNCTION {schema}.finish_leased(
  scope text, key text, owner uuid, epoch bigint, outcome json DEFAULT NULL, status text DEFAULT 'completed', tenant text DEFAULT ''
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  stored bytea := CASE WHEN json_typeof(finish_leased.outcome) <> 'null' THEN convert_to(finish_leased.outcome::text, 'UTF8') END;
BEGIN
  IF finish_leased.status IS NULL OR finish_leased.status NOT IN ('completed', 'rejected') OR octet_length(stored) > 1048576 THEN
    RAISE EXCEPTION 'status % is neither "completed" nor "rejected", or the outcome of % bytes is over 1048576 bytes (1 MiB)',
      coalesce('"' || left(finish_leased.status, 300) || '"', 'null'), coalesce(octet_length(stored), 0)
      USING ERRCODE = 'OB011', HINT = 'A message that is given up is buried: bury_leased().';
  END IF;
  PERFORM {schema}.refuse_uncommitted(c.xmin, 'the claim, or its renewal,')
  FROM {schema}.inbox_claim AS c
  WHERE c.scope = finish_leased.scope AND c.tenant = finish_leased.tenant AND c.key = finish_leased.key;
  IF EXISTS (
    SELECT
    FROM {schema}.inbox_effect AS e
    JOIN {schema}.inbox_claim AS c USING (scope, tenant, key, epoch)
    WHERE e.scope = finish_leased.scope AND e.tenant = finish_leased.tenant AND e.key = finish_leased.key
      AND e.state = 'started' AND c.owner = finish_leased.owner AND c.epoch = finish_leased.epoch
  ) THEN
    RAISE EXCEPTION 'an effect of key "%" that this claim began has not ended', left(finish_leased.key, 300)
      USING ERRCODE = 'OB010', HINT = 'end_effect() first, or release_leased() when nobody knows whether it happened.';
  END IF;
  IF NOT {schema}.end_leased(finish_leased.scope, finish_leased.tenant, finish_leased.key, finish_leased.owner, finish_leased.epoch,
                             finish_leased.status, stored) THEN
    RAISE EXCEPTION 'the lease of key % in scope % is lost: the key has another owner, or has ended',
      coalesce('"' || left(finish_leased.key, 300) || '"', 'null'), coalesce('"' || left(finish_leased.scope, 300) || '"', 'null')
      USING ERRCODE = 'OB014', HINT = 'Roll back, and leave the message to its new owner: it is delivered again, or answered as a copy.';
  END IF;
END $$;
COMMENT ON FUNCTION {schema}.finish_leased IS 'Ends a claim as completed or rejected: the last statement of the transaction with the final writes of the handler. Error OB014 when the lease is lost, so that nothing of it is committed. The effects of the key are forgotten.';

CREATE FUNCTION {schema}.release_leased(
  scope text, key text, owner uuid, epoch bigint, pause interval, reason text, is_unknown boolean DEFAULT false,
  is_attempt boolean DEFAULT true, tenant text DEFAULT ''
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF release_leased.pause IS NULL OR extract(epoch FROM release_leased.pause) NOT BETWEEN 0 AND {schema}.retention_max() THEN
    RAISE EXCEPTION 'pause % is not 0 seconds to 100 years', release_leased.pause USING ERRCODE = 'OB011';
  END IF;
  UPDATE {schema}.inbox_claim AS c
  SET state = CASE WHEN release_leased.is_unknown THEN 'unknown' ELSE 'failed' END,
      reason = {schema}.bounded_reason(release_leased.reason),
      attempts = c.attempts - CASE WHEN release_leased.is_attempt THEN 0 ELSE 1 END,
      lease_until = clock_timestamp() + release_leased.pause
  WHERE c.scope = release_leased.scope
    AND c.tenant = release_leased.tenant
    AND c.key = release_leased.key
    AND c.owner = release_leased.owner
    AND c.epoch = release_leased.epoch
    AND c.state = 'running';
  RETURN FOUND;
END $$;
COMMENT ON FUNCTION {schema}.release_leased IS 'Gives a claim back that did not end: every process may claim the key after the pause. is_unknown: an effect may have happened; is_attempt false: the run does not count. The records of its effects stay. False: the lease is lost.';

CREATE FUNCTION {schema}.bury_leased(
  scope text, key text, owner uuid, epoch bigint, payload bytea, reason text, subject text, headers jsonb DEFAULT '{}',
  tenant text DEFAULT '', stream text DEFAULT NULL, stream_sequence bigint DEFAULT NULL, stored_at timestamptz DEFAULT NULL,
  deliveries bigint DEFAULT 1
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  open_effects text := (
    SELECT string_agg(format('"%s"', e.step), ', ' ORDER BY e.step)
    FROM {schema}.inbox_effect AS e
    WHERE e.scope = bury_leased.scope AND e.tenant = bury_leased.tenant AND e.key = bury_leased.key AND e.state = 'started'
  );
  kept text := {schema}.bounded_reason(bury_leased.reason);
BEGIN
  -- Also when the last run came to another end: an operator has to find out about these effects.
  IF open_effects IS NOT NULL AND strpos(kept, format('effect %s is unknown', open_effects)) = 0 THEN
    kept := {schema}.bounded_reason(left(kept, 800) || format('; the outcome of effect %s is unknown', left(open_effects, 150)));
  END IF;
  IF bury_leased.payload IS NULL OR bury_leased.subject IS NULL THEN
    PERFORM {schema}.refuse_null(false, bury_leased.payload IS NOT NULL);
  END IF;
  IF jsonb_typeof(bury_leased.headers) <> 'object' THEN
    RAISE EXCEPTION 'headers are a JSON %, not an object', jsonb_typeof(bury_leased.headers) USING ERRCODE = 'OB004';
  END IF;
  IF num_nulls(bury_leased.stream, bury_leased.stream_sequence, bury_leased.stored_at) NOT IN (0, 3) THEN
    RAISE EXCEPTION 'stream, stream_sequence and stored_at are not given together'
      USING ERRCODE = 'OB011', HINT = 'They say where the message is stored. Leave all of them out for one that is in no stream.';
  END IF;
  PERFORM {schema}.check_stored_at(bury_leased.stored_at);
  RETURN {schema}.give_up_leased(bury_leased.scope, bury_leased.tenant, bury_leased.key, bury_leased.owner, bury_leased.epoch,
    bury_leased.subject, coalesce(bury_leased.headers, '{}'), bury_leased.payload, bury_leased.stream,
    bury_leased.stream_sequence, bury_leased.stored_at, coalesce(bury_leased.deliveries, 1), kept);
END $$;
COMMENT ON FUNCTION {schema}.bury_leased IS 'Gives a message up: ends its claim as dead and records the dead letter, in a transaction of its own. The reason names the effects that may have happened; the records of all stay, so that a retry calls none of them again. False: the lease is lost, and nothing is written. Call bury() for a mismatch, and for a message without a valid key.';

-- Answers for a key of a leased scope that bury() is called with; NULL in a scope of the other
-- mode.
CREATE FUNCTION {schema}.look_up_leased(scope text, tenant text, key text, fingerprint bytea) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  claimed bytea;
  answer text;
BEGIN
  IF NOT EXISTS (SELECT FROM {schema}.inbox_scope AS s WHERE s.scope = look_up_leased.scope AND s.mode = 'lease') THEN
    RETURN NULL;
  END IF;
  SELECT c.fingerprint INTO claimed
  FROM {schema}.inbox_claim AS c
  WHERE c.scope = look_up_leased.scope AND c.tenant = look_up_leased.tenant AND c.key = look_up_leased.key;
  SELECT l.answer INTO answer FROM {schema}.look_up_ended(look_up_leased.scope, look_up_leased.tenant, look_up_leased.key, look_up_leased.fingerprint) AS l;
  answer := CASE WHEN answer IS NULL AND claimed <> look_up_leased.fingerprint THEN 'mismatch' ELSE answer END;
  IF answer IS NULL THEN
    RAISE EXCEPTION 'key "%" of scope "%" has not ended, and is claimed under a lease', look_up_leased.key, look_up_leased.scope
      USING ERRCODE = 'OB010', HINT = 'Claim it with claim_leased(), and give it up with bury_leased().';
  END IF;
  RETURN answer;
END $$;

-- Records that a message is snoozed, which is no attempt: how often it was, and since when. A row
-- that was not touched for the longest time belongs to an earlier problem: the time counts from now
-- again, but the attempts do not.
-- Index: inbox_snooze_pkey, inbox_attempt_pkey. Locking: the rows of this copy of the message; a
-- process that works on another copy locks other rows.
CREATE FUNCTION {schema}.record_snooze(
  scope text, tenant text, key text, stream text, stream_sequence bigint, stored_at timestamptz, deliveries bigint,
  pause interval, longest interval, reason text, OUT snoozes bigint, OUT since timestamptz
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  copy text := {schema}.inbox_copy(record_snooze.stream, record_snooze.stream_sequence, record_snooze.stored_at);
  due timestamptz := clock_timestamp() + record_snooze.pause;
  tried bigint;
BEGIN
  UPDATE {schema}.inbox_attempt AS a
  SET failures = a.failures + greatest(a.begun - 2, 0), begun = 0, touched_at = clock_timestamp(), due_at = due
  WHERE a.scope = record_snooze.scope AND a.tenant = record_snooze.tenant AND a.key = record_snooze.key AND a.message = copy
  RETURNING a.failures INTO tried;
  INSERT INTO {schema}.inbox_snooze AS p (scope, tenant, key, message, delivery, attempts, reason, due_at)
  VALUES (record_snooze.scope, record_snooze.tenant, record_snooze.key, copy, greatest(record_snooze.deliveries, 1), coalesce(tried, 0),
          {schema}.bounded_reason(record_snooze.reason), due)
  ON CONFLICT ON CONSTRAINT inbox_snooze_pkey DO UPDATE
  SET delivery = excluded.delivery,
      attempts = excluded.attempts,
      reason = excluded.reason,
      due_at = excluded.due_at,
      snoozes = CASE WHEN p.due_at < clock_timestamp() - record_snooze.longest THEN 1 ELSE p.snoozes + 1 END,
      snoozed_at = CASE WHEN p.due_at < clock_timestamp() - record_snooze.longest THEN excluded.snoozed_at ELSE p.snoozed_at END
  RETURNING p.snoozes, p.snoozed_at INTO snoozes, since;
END $$;
COMMENT ON FUNCTION {schema}.record_snooze IS 'A part of snooze(), for the crate oncebox-inbox: how often a message was snoozed, and since when. It checks nothing.';

CREATE FUNCTION {schema}.snooze(
  scope text, key text, pause interval, reason text, tenant text DEFAULT '', stream text DEFAULT NULL,
  stream_sequence bigint DEFAULT NULL, stored_at timestamptz DEFAULT NULL, deliveries bigint DEFAULT 1,
  longest interval DEFAULT '24 hours'
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF snooze.key IS NULL THEN
    PERFORM {schema}.refuse_null(true, false);
  END IF;
  PERFORM {schema}.check_inbox_names(snooze.scope, snooze.tenant), {schema}.check_key(snooze.key), {schema}.check_stored_at(snooze.stored_at);
  IF num_nulls(snooze.pause, snooze.longest) > 0 OR extract(epoch FROM snooze.pause) NOT BETWEEN 0 AND 30 * 86400
     OR extract(epoch FROM snooze.longest) NOT BETWEEN 1 AND 30 * 86400 THEN
    RAISE EXCEPTION 'pause % is not 0 seconds to 30 days, or longest % not 1 second to 30 days', snooze.pause, snooze.longest
      USING ERRCODE = 'OB011';
  END IF;
  RETURN (
    SELECT clock_timestamp() - r.since < snooze.longest
    FROM {schema}.record_snooze(snooze.scope, snooze.tenant, snooze.key, snooze.stream, snooze.stream_sequence, snooze.stored_at,
                                snooze.deliveries, snooze.pause, snooze.longest, snooze.reason) AS r
  );
END $$;
COMMENT ON FUNCTION {schema}.snooze IS 'Records, after its rollback, that a handler wants a message again after a pause, which is no attempt. False: it has been snoozed for longer than longest, so bury it.';
