-- Leased mode as functions, for handlers in any language with effects outside the database:
-- claim_leased, renew_lease, begin_effect, begin_effect_again, end_effect; 0018_endings.sql goes
-- on. As the statements of leased mode in oncebox-claims, which say why the locks are right. Each
-- call must be committed before its caller goes on: where one was not, the next says so.

-- Refuses an owner and a time that no lease can have.
CREATE FUNCTION {schema}.check_lease(owner uuid, lease interval) RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
  IF owner IS NULL THEN
    RAISE EXCEPTION 'owner is null' USING ERRCODE = 'OB011', HINT = 'An owner is a new random UUID for each claim.';
  END IF;
  IF lease IS NULL OR extract(epoch FROM lease) NOT BETWEEN 0.1 AND 3600 THEN
    RAISE EXCEPTION 'lease % is not 100 milliseconds to 1 hour', lease
      USING ERRCODE = 'OB011', HINT = 'Renew it every third of its time.';
  END IF;
END $$;

-- How a key ended, for claim_leased(): NULL while it has not, or its row is older than the
-- retention. A dead key that an operator is about to free is in flight: see dead.sql of
-- oncebox-claims.
CREATE FUNCTION {schema}.look_up_ended(
  scope text, tenant text, key text, fingerprint bytea, OUT answer text, OUT outcome bytea, OUT is_expired boolean
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  stored record;
BEGIN
  SELECT i.status, i.fingerprint, i.outcome,
         coalesce(i.created_at < clock_timestamp() - make_interval(secs => s.retention_seconds), false) AS is_expired
  INTO stored
  FROM {schema}.inbox AS i
  JOIN {schema}.inbox_scope AS s ON s.scope = i.scope
  WHERE i.scope = look_up_ended.scope AND i.tenant = look_up_ended.tenant AND i.key = look_up_ended.key;
  is_expired := coalesce(stored.is_expired, false);
  IF stored.status IS NULL OR is_expired THEN
    RETURN;
  END IF;
  outcome := stored.outcome;
  answer := CASE
    WHEN stored.fingerprint NOT IN ('', look_up_ended.fingerprint) THEN 'mismatch'
    WHEN stored.status = 'completed' THEN 'replayed'
    ELSE stored.status
  END;
  IF answer = 'dead' THEN
    PERFORM
    FROM {schema}.inbox AS i
    WHERE i.scope = look_up_ended.scope AND i.tenant = look_up_ended.tenant AND i.key = look_up_ended.key AND i.status = 'dead'
    FOR KEY SHARE SKIP LOCKED;
    IF NOT FOUND THEN
      answer := 'in_flight';
    END IF;
  END IF;
END $$;

-- Claims a key, or takes over a claim whose lease, or pause after a failure, has ended. Locking: of
-- two takers the second waits for the first's row, for a second at most, then reads the new lease
-- and has nothing. A claim that ended after the first look leaves a row of inbox, which the second
-- look sees; from then on no other transaction can end the key.
CREATE FUNCTION {schema}.claim_leased(
  scope text, key text, payload bytea, owner uuid, lease interval, tenant text DEFAULT '', message_id bigint DEFAULT NULL,
  is_alone boolean DEFAULT false, OUT answer text, OUT outcome json, OUT reason text, OUT epoch bigint, OUT attempts integer
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
DECLARE
  fingerprint bytea;
  held record;
  ended record;
BEGIN
  PERFORM {schema}.check_inbox_names(claim_leased.scope, claim_leased.tenant),
          {schema}.check_lease(claim_leased.owner, claim_leased.lease);
  IF claim_leased.key IS NULL OR claim_leased.payload IS NULL THEN
    PERFORM {schema}.refuse_null(claim_leased.key IS NULL, false);
  END IF;
  PERFORM {schema}.check_key(claim_leased.key);
  fingerprint := {schema}.inbox_fingerprint(claim_leased.payload);
  PERFORM FROM {schema}.inbox_scope AS s WHERE s.scope = claim_leased.scope AND s.mode = 'lease';
  IF NOT FOUND THEN
    PERFORM {schema}.register_scope(claim_leased.scope, mode => 'lease');
  END IF;
  ended := {schema}.look_up_ended(claim_leased.scope, claim_leased.tenant, claim_leased.key, fingerprint);
  IF ended.answer IS NULL THEN
    SELECT CASE
             WHEN c.fingerprint <> claim_leased_fingerprint THEN 'mismatch'
             WHEN c.lease_until > clock_timestamp() THEN 'in_flight'
             WHEN c.state = 'running' AND c.attempts >= 2 AND claim_leased.is_alone IS NOT TRUE THEN 'alone'
           END
    INTO answer
    FROM {schema}.inbox_claim AS c, (SELECT fingerprint) AS f (claim_leased_fingerprint)
    WHERE c.scope = claim_leased.scope AND c.tenant = claim_leased.tenant AND c.key = claim_leased.key;
    IF answer IS NOT NULL THEN
      RETURN;
    END IF;
    BEGIN
      INSERT INTO {schema}.inbox_claim AS c (scope, tenant, key, fingerprint, message_id, owner, lease_until)
      VALUES (claim_leased.scope, claim_leased.tenant, claim_leased.key, fingerprint, claim_leased.message_id,
              claim_leased.owner, clock_timestamp() + claim_leased.lease)
      ON CONFLICT ON CONSTRAINT inbox_claim_pkey DO UPDATE
      SET owner = excluded.owner,
          epoch = c.epoch + 1,
          state = 'running',
          lease_until = clock_timestamp() + claim_leased.lease,
          attempts = c.attempts + 1,
          taken_over = c.state = 'running',
          reason = NULL
      WHERE c.lease_until <= clock_timestamp()
        AND c.fingerprint = excluded.fingerprint
      RETURNING c.epoch, c.attempts INTO held;
      ended := {schema}.look_up_ended(claim_leased.scope, claim_leased.tenant, claim_leased.key, fingerprint);
      IF held.epoch IS NOT NULL AND ended.answer IS NOT NULL THEN
        DELETE FROM {schema}.inbox_claim AS c
        WHERE c.scope = claim_leased.scope AND c.tenant = claim_leased.tenant AND c.key = claim_leased.key;
      ELSIF held.epoch IS NOT NULL THEN
        DELETE FROM {schema}.inbox AS i
        WHERE ended.is_expired AND i.scope = claim_leased.scope AND i.tenant = claim_leased.tenant AND i.key = claim_leased.key;
        answer := 'new';
        epoch := held.epoch;
        attempts := held.attempts;
        RETURN;
      END IF;
    EXCEPTION WHEN lock_not_available THEN
      -- Another taker, or one who ends the key at this moment, or the sweep, has the row.
      answer := 'in_flight';
      RETURN;
    END;
  END IF;
  answer := coalesce(ended.answer, 'in_flight');
  IF answer = 'dead' THEN
    reason := convert_from(ended.outcome, 'UTF8');
  ELSIF answer IN ('replayed', 'rejected') THEN
    outcome := convert_from(ended.outcome, 'UTF8')::json;
  END IF;
END $$;
COMMENT ON FUNCTION {schema}.claim_leased IS 'Claims a key for the time of a lease, in a transaction of its own: new (handle the message; the epoch is the proof in all later calls; attempts counts the claims of this key), replayed or rejected (a copy, with its outcome), dead (given up, with the reason), in_flight (another process works on it, or its pause is not over: later), mismatch (the key of another payload), alone (it ended two owners without a trace: ask again with is_alone when nothing else runs in this process). COMMIT before you go on: begin_effect() refuses a claim that is not committed.';

-- The fence: whether the claim is still this owner's, whose lease begins again. An owner calls it
-- before everything that it writes, in the same transaction.
CREATE FUNCTION {schema}.renew_lease(
  scope text, key text, owner uuid, epoch bigint, lease interval, tenant text DEFAULT ''
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM {schema}.check_lease(renew_lease.owner, renew_lease.lease);
  UPDATE {schema}.inbox_claim AS c
  SET lease_until = clock_timestamp() + renew_lease.lease
  WHERE c.scope = renew_lease.scope
    AND c.tenant = renew_lease.tenant
    AND c.key = renew_lease.key
    AND c.owner = renew_lease.owner
    AND c.epoch = renew_lease.epoch
    AND c.state = 'running';
  RETURN FOUND;
END $$;
COMMENT ON FUNCTION {schema}.renew_lease IS 'Starts the time of a lease again; false: another owner has the key, or it has ended. Then call and write nothing more for this message. Call it every third of the lease.';

-- Refuses a row that this transaction has written itself: its caller goes on, to a provider that
-- nothing rolls back, as if it were committed.
CREATE FUNCTION {schema}.refuse_uncommitted(row_xmin xid, what text) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF {schema}.is_own(row_xmin) THEN
    RAISE EXCEPTION '% is not committed: this transaction has done it itself', what
      USING ERRCODE = 'OB010', HINT = 'Each call of leased mode is a transaction of its own: switch autocommit on, or COMMIT behind each call.';
  END IF;
END $$;

CREATE FUNCTION {schema}.begin_effect(
  scope text, key text, owner uuid, epoch bigint, lease interval, step text, tenant text DEFAULT '',
  OUT answer text, OUT result json, OUT reason text, OUT age interval, OUT is_own boolean
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  effect record;
BEGIN
  IF begin_effect.step IS NULL OR octet_length(begin_effect.step) NOT BETWEEN 1 AND 64 OR begin_effect.step ~ '[^!-~]' THEN
    RAISE EXCEPTION 'step % is not 1 to 64 bytes of printable ASCII without spaces', coalesce('"' || left(begin_effect.step, 300) || '"', 'null')
      USING ERRCODE = 'OB011', HINT = 'It names the effect among those of the message, for example "gateway-charge".';
  END IF;
  PERFORM {schema}.refuse_uncommitted(c.xmin, 'the claim, or its renewal,')
  FROM {schema}.inbox_claim AS c
  WHERE c.scope = begin_effect.scope AND c.tenant = begin_effect.tenant AND c.key = begin_effect.key;
  IF NOT {schema}.renew_lease(begin_effect.scope, begin_effect.key, begin_effect.owner, begin_effect.epoch, begin_effect.lease, begin_effect.tenant) THEN
    answer := 'lost';
    RETURN;
  END IF;
  INSERT INTO {schema}.inbox_effect (scope, tenant, key, step, epoch)
  VALUES (begin_effect.scope, begin_effect.tenant, begin_effect.key, begin_effect.step, begin_effect.epoch)
  ON CONFLICT ON CONSTRAINT inbox_effect_pkey DO NOTHING;
  IF FOUND THEN
    answer := 'begun';
    RETURN;
  END IF;
  SELECT e.state, e.result, e.epoch, clock_timestamp() - e.started_at AS age INTO effect
  FROM {schema}.inbox_effect AS e
  WHERE e.scope = begin_effect.scope AND e.tenant = begin_effect.tenant AND e.key = begin_effect.key AND e.step = begin_effect.step;
  answer := CASE effect.state WHEN 'started' THEN 'open' ELSE effect.state END;
  IF answer = 'done' THEN
    result := convert_from(effect.result, 'UTF8')::json;
  ELSIF answer = 'rejected' THEN
    reason := convert_from(effect.result, 'UTF8');
  ELSE
    age := greatest(effect.age, interval '0');
    is_own := effect.epoch = begin_effect.epoch;
  END IF;
END $$;
COMMENT ON FUNCTION {schema}.begin_effect IS 'Records that an effect outside the database may happen from now on: begun (COMMIT, then call the provider with the key key:step), done or rejected (it ended before, with its result or reason: do not call), open (an earlier run began it, its age ago, and its outcome is unknown: ask the provider; is_own: this claim began it), lost (the lease is). It renews the lease.';

CREATE FUNCTION {schema}.begin_effect_again(
  scope text, key text, owner uuid, epoch bigint, lease interval, step text, tenant text DEFAULT ''
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT {schema}.renew_lease(begin_effect_again.scope, begin_effect_again.key, begin_effect_again.owner, begin_effect_again.epoch,
                              begin_effect_again.lease, begin_effect_again.tenant) THEN
    RETURN false;
  END IF;
  UPDATE {schema}.inbox_effect AS e
  SET started_at = clock_timestamp(), epoch = begin_effect_again.epoch
  WHERE e.scope = begin_effect_again.scope AND e.tenant = begin_effect_again.tenant AND e.key = begin_effect_again.key
    AND e.step = begin_effect_again.step AND e.state = 'started';
  IF NOT FOUND THEN
    RAISE EXCEPTION 'effect "%" of key "%" is not open', left(begin_effect_again.step, 300), left(begin_effect_again.key, 300)
      USING ERRCODE = 'OB010', HINT = 'begin_effect_again() follows on begin_effect() that answered "open".';
  END IF;
  RETURN true;
END $$;
COMMENT ON FUNCTION {schema}.begin_effect_again IS 'Before an open effect is called again, because the provider knows nothing of it, or because it answers one key once; false: the lease is lost.';

CREATE FUNCTION {schema}.end_effect(
  scope text, key text, owner uuid, epoch bigint, lease interval, step text, status text, result json DEFAULT NULL,
  reason text DEFAULT NULL, tenant text DEFAULT ''
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  stored bytea := CASE end_effect.status
    WHEN 'done' THEN convert_to(coalesce(end_effect.result, 'null')::text, 'UTF8')
    WHEN 'rejected' THEN convert_to({schema}.bounded_reason(end_effect.reason), 'UTF8')
  END;
BEGIN
  IF end_effect.status IS NULL OR end_effect.status NOT IN ('done', 'rejected', 'absent') THEN
    RAISE EXCEPTION 'status % is not "done", "rejected" or "absent"', coalesce('"' || left(end_effect.status, 300) || '"', 'null')
      USING ERRCODE = 'OB011', HINT = 'absent: it is known that the effect did not happen.';
  END IF;
  IF octet_length(stored) > 1048576 THEN
    RAISE EXCEPTION 'the result is % bytes long; the limit is 1048576 bytes (1 MiB)', octet_length(stored)
      USING ERRCODE = 'OB011', HINT = 'End the effect with less of it, or with a reference.';
  END IF;
  IF NOT {schema}.renew_lease(end_effect.scope, end_effect.key, end_effect.owner, end_effect.epoch, end_effect.lease, end_effect.tenant) THEN
    RETURN false;
  END IF;
  PERFORM {schema}.refuse_uncommitted(e.xmin, 'the beginning of the effect')
  FROM {schema}.inbox_effect AS e
  WHERE e.scope = end_effect.scope AND e.tenant = end_effect.tenant AND e.key = end_effect.key AND e.step = end_effect.step;
  IF stored IS NULL THEN
    DELETE FROM {schema}.inbox_effect AS e
    WHERE e.scope = end_effect.scope AND e.tenant = end_effect.tenant AND e.key = end_effect.key AND e.step = end_effect.step AND e.state = 'started';
  ELSE
    UPDATE {schema}.inbox_effect AS e
    SET state = end_effect.status, result = stored, epoch = end_effect.epoch
    WHERE e.scope = end_effect.scope AND e.tenant = end_effect.tenant AND e.key = end_effect.key AND e.step = end_effect.step AND e.state = 'started';
  END IF;
  -- Not found: it has ended so before, and its answer was lost.
  IF NOT FOUND AND (stored IS NOT NULL OR EXISTS (
    SELECT
    FROM {schema}.inbox_effect AS e
    WHERE e.scope = end_effect.scope AND e.tenant = end_effect.tenant AND e.key = end_effect.key AND e.step = end_effect.step
  )) AND NOT EXISTS (
    SELECT
    FROM {schema}.inbox_effect AS e
    WHERE e.scope = end_effect.scope AND e.tenant = end_effect.tenant AND e.key = end_effect.key AND e.step = end_effect.step
      AND e.state = end_effect.status AND e.result = stored
  ) THEN
    RAISE EXCEPTION 'effect "%" of key "%" has not begun, or has ended otherwise', left(end_effect.step, 300), left(end_effect.key, 300)
      USING ERRCODE = 'OB010', HINT = 'end_effect() follows once on begin_effect() that answered "begun" or "open".';
  END IF;
  RETURN true;
END $$;
COMMENT ON FUNCTION {schema}.end_effect IS 'Remembers how an effect ended: done (with its result), rejected (it never will happen, with the reason), absent (it is known not to have happened, and is forgotten). Leave it open, and call release_leased(), when you do not know. False: the lease is lost, and nothing is written. May be repeated when its answer was lost.';
