-- What inboxes keep: besides keys also dead letters, and claims that nobody came back for, go after a time.

ALTER TABLE {schema}.inbox_scope
  ADD COLUMN kind text NOT NULL DEFAULT 'consumer',
  ADD COLUMN dead_letter_seconds double precision,
  ADD CONSTRAINT inbox_scope_kind CHECK (kind IN ('consumer', 'http')),
  ADD CONSTRAINT inbox_scope_dead_letters CHECK (dead_letter_seconds > 0);
COMMENT ON TABLE {schema}.inbox_scope IS 'The consumers and the HTTP routes of this database, as their processes registered them when they started.';
COMMENT ON COLUMN {schema}.inbox_scope.kind IS 'consumer: of messages; http: a route, whose keys are repeated by clients, not by a stream.';
COMMENT ON COLUMN {schema}.inbox_scope.dead_letter_seconds IS 'How long a dead letter is kept at least, and never shorter than a key; NULL is for ever.';

-- No owner has the epoch 0: whoever claims a key again that died must not take these for its own.
UPDATE {schema}.inbox_effect AS e
SET epoch = 0
WHERE NOT EXISTS (
  SELECT FROM {schema}.inbox_claim AS c
  WHERE c.scope = e.scope AND c.tenant = e.tenant AND c.key = e.key
);

-- One step of the deletion of what is older than its retention: in a range of blocks of the three tables, which is read by
-- block numbers, so that it costs the same for any size of them. Rows that somebody has locked are left for the next sweep.
-- It runs with its owner's rights: an operator may have old rows deleted without a right to change others.
--
-- An effect outside the database must be remembered for as long as its message may come again: else it happens twice. A
-- key may come again until its retention is over, and any time while its dead letter can be retried. So
--   the effects of a claim that nobody came back for go with the claim, a retention after its last lease or pause;
--   those of a key that died go with its row and its dead letter, whichever goes last; a retry frees the key and takes the
--   letter, so they stay until the message has come and its claim ends or goes.
CREATE FUNCTION {schema}.sweep_inbox(
  first_block bigint,
  end_block bigint,
  only_count boolean,
  OUT keys bigint,
  OUT dead_letters bigint,
  OUT claims bigint,
  OUT unknown_effects bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  first_row CONSTANT tid := format('(%s,0)', first_block);
  end_row CONSTANT tid := format('(%s,0)', end_block);
  moment CONSTANT timestamptz := statement_timestamp();
  unknown_of_keys bigint;
  unknown_of_letters bigint;
BEGIN
  IF only_count THEN
    SELECT count(*) INTO keys
    FROM {schema}.inbox AS i
    JOIN {schema}.inbox_scope AS s ON s.scope = i.scope
    WHERE i.ctid >= first_row AND i.ctid < end_row
      AND i.created_at < moment - make_interval(secs => s.retention_seconds);
    SELECT count(*) INTO dead_letters
    FROM {schema}.dead_letter AS l
    JOIN {schema}.inbox_scope AS s ON s.scope = l.scope
    WHERE l.ctid >= first_row AND l.ctid < end_row
      AND l.created_at < moment - make_interval(secs => s.dead_letter_seconds)
      AND l.created_at < moment - make_interval(secs => s.retention_seconds);
    SELECT count(*), count(e.step) INTO claims, unknown_effects
    FROM {schema}.inbox_claim AS c
    JOIN {schema}.inbox_scope AS s ON s.scope = c.scope
    LEFT JOIN LATERAL (
      SELECT f.step
      FROM {schema}.inbox_effect AS f
      WHERE f.scope = c.scope AND f.tenant = c.tenant AND f.key = c.key AND f.state = 'started'
      LIMIT 1
    ) AS e ON true
    WHERE c.ctid >= first_row AND c.ctid < end_row
      AND c.lease_until < moment - make_interval(secs => s.retention_seconds);
    RETURN;
  END IF;

  WITH old AS MATERIALIZED (
    SELECT i.ctid
    FROM {schema}.inbox AS i
    WHERE i.ctid >= first_row AND i.ctid < end_row
      AND i.created_at < moment - (
            SELECT make_interval(secs => s.retention_seconds)
            FROM {schema}.inbox_scope AS s
            WHERE s.scope = i.scope
          )
    FOR UPDATE OF i SKIP LOCKED
  ),
  deleted AS (
    DELETE FROM {schema}.inbox
    WHERE ctid = ANY (ARRAY(SELECT o.ctid FROM old AS o))
    RETURNING scope, tenant, key, status
  ),
  forgotten AS (
    DELETE FROM {schema}.inbox_effect AS e
    USING deleted AS d
    WHERE d.status = 'dead'
      AND e.scope = d.scope AND e.tenant = d.tenant AND e.key = d.key
      AND NOT EXISTS (
        SELECT FROM {schema}.dead_letter AS l
        WHERE l.scope = d.scope AND l.tenant = d.tenant AND l.key = d.key
      )
      AND NOT EXISTS (
        SELECT FROM {schema}.inbox_claim AS c
        WHERE c.scope = d.scope AND c.tenant = d.tenant AND c.key = d.key
      )
    RETURNING e.state
  )
  SELECT (SELECT count(*) FROM deleted), (SELECT count(*) FROM forgotten AS f WHERE f.state = 'started')
  INTO keys, unknown_of_keys;

  WITH old AS MATERIALIZED (
    SELECT l.ctid
    FROM {schema}.dead_letter AS l
    WHERE l.ctid >= first_row AND l.ctid < end_row
      AND l.created_at < moment - (
            SELECT CASE
                     WHEN s.dead_letter_seconds IS NOT NULL AND s.retention_seconds IS NOT NULL
                     THEN make_interval(secs => greatest(s.dead_letter_seconds, s.retention_seconds))
                   END
            FROM {schema}.inbox_scope AS s
            WHERE s.scope = l.scope
          )
    FOR UPDATE OF l SKIP LOCKED
  ),
  deleted AS (
    DELETE FROM {schema}.dead_letter
    WHERE ctid = ANY (ARRAY(SELECT o.ctid FROM old AS o))
    RETURNING id, scope, tenant, key
  ),
  forgotten AS (
    DELETE FROM {schema}.inbox_effect AS e
    USING deleted AS d
    WHERE e.scope = d.scope AND e.tenant = d.tenant AND e.key = d.key
      AND NOT EXISTS (
        SELECT FROM {schema}.dead_letter AS l
        WHERE l.scope = d.scope AND l.tenant = d.tenant AND l.key = d.key
          AND NOT EXISTS (SELECT FROM deleted AS o WHERE o.id = l.id)
      )
      AND NOT EXISTS (
        SELECT FROM {schema}.inbox AS i
        WHERE i.scope = d.scope AND i.tenant = d.tenant AND i.key = d.key AND i.status = 'dead'
      )
      AND NOT EXISTS (
        SELECT FROM {schema}.inbox_claim AS c
        WHERE c.scope = d.scope AND c.tenant = d.tenant AND c.key = d.key
      )
    RETURNING e.state
  )
  SELECT (SELECT count(*) FROM deleted), (SELECT count(*) FROM forgotten AS f WHERE f.state = 'started')
  INTO dead_letters, unknown_of_letters;

  WITH old AS MATERIALIZED (
    SELECT c.scope, c.tenant, c.key
    FROM {schema}.inbox_claim AS c
    WHERE c.ctid >= first_row AND c.ctid < end_row
      AND c.lease_until < moment - (
            SELECT make_interval(secs => s.retention_seconds)
            FROM {schema}.inbox_scope AS s
            WHERE s.scope = c.scope
          )
    FOR UPDATE OF c SKIP LOCKED
  ),
  deleted AS (
    DELETE FROM {schema}.inbox_claim AS c
    USING old AS o
    WHERE c.scope = o.scope AND c.tenant = o.tenant AND c.key = o.key
    RETURNING c.scope, c.tenant, c.key
  ),
  forgotten AS (
    DELETE FROM {schema}.inbox_effect AS e
    USING deleted AS d
    WHERE e.scope = d.scope AND e.tenant = d.tenant AND e.key = d.key
    RETURNING e.state
  )
  SELECT (SELECT count(*) FROM deleted), (SELECT count(*) FROM forgotten AS f WHERE f.state = 'started')
  INTO claims, unknown_effects;
  unknown_effects := unknown_effects + unknown_of_keys + unknown_of_letters;
END $$;
COMMENT ON FUNCTION {schema}.sweep_inbox(bigint, bigint, boolean) IS 'Deletes, or only counts, what is older than the retentions of inbox_scope in a range of blocks of inbox, dead_letter and inbox_claim. unknown_effects: effects outside the database whose outcome nobody found out.';
