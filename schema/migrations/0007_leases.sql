-- Leased mode: claims that are in progress, the effects outside the database that they remember,
-- and the sweep of all that inboxes keep, which must not forget an effect too early.

-- Room on each page, so that a renewal, an update of no indexed column, finds its place there.
CREATE TABLE {schema}.inbox_claim (
  scope       varchar(255) COLLATE "C" NOT NULL,
  tenant      varchar(255) COLLATE "C" NOT NULL,
  key         varchar(255) COLLATE "C" NOT NULL,
  fingerprint bytea NOT NULL,
  message_id  bigint,
  owner       uuid NOT NULL,
  epoch       bigint NOT NULL DEFAULT 1,
  state       text NOT NULL DEFAULT 'running',
  lease_until timestamptz NOT NULL,
  attempts    integer NOT NULL DEFAULT 1,
  taken_over  boolean NOT NULL DEFAULT false,
  reason      text,
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT inbox_claim_pkey PRIMARY KEY (scope, tenant, key),
  CONSTRAINT inbox_claim_state CHECK (state IN ('running', 'failed', 'unknown')),
  CONSTRAINT inbox_claim_reason CHECK ((state = 'running') = (reason IS NULL)),
  CONSTRAINT inbox_claim_reason_size CHECK (octet_length(reason) BETWEEN 1 AND 1000),
  CONSTRAINT inbox_claim_bounds CHECK (epoch >= 1 AND attempts >= 0)
) WITH (fillfactor = 70);
COMMENT ON TABLE {schema}.inbox_claim IS 'Claims of leased mode that are in progress. When one ends, its row is replaced by one of inbox in the same transaction.';
COMMENT ON COLUMN {schema}.inbox_claim.epoch IS 'Counts the owners. Each write of an owner is checked against owner and epoch.';
COMMENT ON COLUMN {schema}.inbox_claim.state IS 'running: an owner works on it; failed: no effect, to be repeated; unknown: an effect may have happened, to be reconciled.';
COMMENT ON COLUMN {schema}.inbox_claim.lease_until IS 'No other process may claim the key before, by the database''s clock: the end of the lease, or of the pause after a failure.';
COMMENT ON COLUMN {schema}.inbox_claim.taken_over IS 'The owner took the claim from another whose lease had ended.';

CREATE TABLE {schema}.inbox_effect (
  scope      varchar(255) COLLATE "C" NOT NULL,
  tenant     varchar(255) COLLATE "C" NOT NULL,
  key        varchar(255) COLLATE "C" NOT NULL,
  step       text COLLATE "C" NOT NULL,
  state      text NOT NULL DEFAULT 'started',
  result     bytea,
  epoch      bigint NOT NULL,
  started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT inbox_effect_pkey PRIMARY KEY (scope, tenant, key, step),
  CONSTRAINT inbox_effect_step_size CHECK (octet_length(step) BETWEEN 1 AND 64),
  CONSTRAINT inbox_effect_state CHECK (state IN ('started', 'done', 'rejected')),
  CONSTRAINT inbox_effect_result CHECK ((state = 'started') = (result IS NULL))
);
COMMENT ON TABLE {schema}.inbox_effect IS 'The effects outside this database of claims in progress, and of those given up. Forgotten when the claim ends well.';
COMMENT ON COLUMN {schema}.inbox_effect.state IS 'started: it may have happened; done: it happened; rejected: it never will.';
COMMENT ON COLUMN {schema}.inbox_effect.result IS 'The result as JSON (done), or the reason as text (rejected).';

-- Refuses while a key is claimed under a lease, or an effect is unknown: the other mode would not
-- see it.
CREATE FUNCTION {schema}.change_inbox_mode(inbox_scope text, new_mode text, by text DEFAULT NULL, note text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  pending bigint;
BEGIN
  IF new_mode IS NULL OR new_mode NOT IN ('transaction', 'lease') THEN
    RAISE EXCEPTION 'mode "%" is neither "transaction" nor "lease"', new_mode USING ERRCODE = 'OB002';
  END IF;
  SELECT count(*) INTO pending FROM {schema}.inbox_claim AS c WHERE c.scope = $1;
  IF pending > 0 THEN
    RAISE EXCEPTION '% keys of scope "%" are claimed under a lease and have not ended', pending, $1
      USING ERRCODE = 'OB002', HINT = 'Let the processes of the former mode finish them, or give them up.';
  END IF;
  SELECT count(*) INTO pending FROM {schema}.inbox_effect AS e WHERE e.scope = $1 AND e.state = 'started';
  IF pending > 0 THEN
    RAISE EXCEPTION '% effects of scope "%" may have happened, and nobody has found out', pending, $1
      USING ERRCODE = 'OB002', HINT = 'Retry their dead letters in the former mode, or wait until they are deleted with them.';
  END IF;
  UPDATE {schema}.inbox_scope AS s SET mode = $2 WHERE s.scope = $1;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'scope "%" is not known', $1
      USING ERRCODE = 'OB002', HINT = 'Scopes are listed in inbox_scope.';
  END IF;
  INSERT INTO {schema}.audit (operator, note, action, scope, reason) VALUES ($3, $4, 'change-scope', $1, 'mode ' || $2);
END $$;
COMMENT ON FUNCTION {schema}.change_inbox_mode IS 'Lets a scope claim its keys in the other mode from now on. Stop all processes of the scope first: one that still runs would handle messages a second time.';

-- The settings of a scope, which processes only propose when they register it first.
CREATE FUNCTION {schema}.change_scope(
  scope text, retention interval, dead_letter_retention interval, kind text, by text DEFAULT NULL, note text DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  keys_seconds double precision := extract(epoch FROM change_scope.retention);
  letters_seconds double precision := extract(epoch FROM coalesce(change_scope.dead_letter_retention, interval '90 days'));
BEGIN
  IF coalesce(change_scope.kind NOT IN ('consumer', 'http'), true)
     OR NOT coalesce(keys_seconds, 1) BETWEEN 1 AND {schema}.retention_max()
     OR NOT letters_seconds BETWEEN 1 AND {schema}.retention_max() THEN
    RAISE EXCEPTION 'kind "%", retention % and dead_letter_retention % of scope "%" do not fit', change_scope.kind,
      change_scope.retention, change_scope.dead_letter_retention, change_scope.scope
      USING ERRCODE = 'OB011', HINT = 'A kind is consumer or http. Both times are 1 second to 100 years; NULL keeps keys for ever.';
  END IF;
  UPDATE {schema}.inbox_scope AS s
  SET retention_seconds = keys_seconds,
      dead_letter_seconds = CASE WHEN keys_seconds IS NOT NULL THEN greatest(letters_seconds, keys_seconds) END,
      kind = change_scope.kind,
      registered_at = clock_timestamp()
  WHERE s.scope = change_scope.scope;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'scope "%" is not known', change_scope.scope
      USING ERRCODE = 'OB002', HINT = 'Scopes are listed in inbox_scope.';
  END IF;
  INSERT INTO {schema}.audit (operator, note, action, scope, reason)
  VALUES (change_scope.by, change_scope.note, 'change-scope', change_scope.scope,
          format('%s, retention %s', change_scope.kind, coalesce(change_scope.retention::text, 'for ever')));
END $$;
COMMENT ON FUNCTION {schema}.change_scope IS 'For operators: sets how long a scope keeps keys (NULL: for ever) and dead letters (NULL: 90 days, or as long as keys), and its kind. Its processes go by it from their next start on.';

-- Deletes rows older than their retention from one range of blocks. The three tables are read by
-- block numbers, so that a step costs the same for any size of them. Rows that another transaction
-- has locked are left for the next sweep. It runs with its owner's rights: an operator may have old
-- rows deleted without a right to change others.
--
-- An effect outside the database must be remembered for as long as its message may come again: else
-- it happens twice. A key may come again until its retention is over, and any time while its dead
-- letter can be retried. So
--   the effects of a claim that was never continued go with the claim, a retention after its last
--   lease or pause;
--   those of a key that died go with its row and its dead letter, when the last of both goes; a
--   retry frees the key and takes the letter, so they stay until the message has come and its claim
--   ends or goes.
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
COMMENT ON FUNCTION {schema}.sweep_inbox IS 'Deletes, or only counts, rows older than the retentions of inbox_scope in a range of blocks of inbox, dead_letter and inbox_claim. unknown_effects: effects outside the database whose outcome is unknown.';

-- When the first row in a range of blocks will be past its retention, if nothing is written there.
CREATE FUNCTION {schema}.sweep_due(first_block bigint, end_block bigint) RETURNS timestamptz
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  first_row CONSTANT tid := format('(%s,0)', first_block);
  end_row CONSTANT tid := format('(%s,0)', end_block);
BEGIN
  RETURN (
    SELECT min(r.oldest + make_interval(secs => CASE
             WHEN r.is_letter THEN greatest(s.dead_letter_seconds, s.retention_seconds)
             ELSE s.retention_seconds
           END))
    FROM (
      SELECT i.scope, min(i.created_at) AS oldest, false AS is_letter
      FROM {schema}.inbox AS i
      WHERE i.ctid >= first_row AND i.ctid < end_row
      GROUP BY i.scope
      UNION ALL
      SELECT l.scope, min(l.created_at), true
      FROM {schema}.dead_letter AS l
      WHERE l.ctid >= first_row AND l.ctid < end_row
      GROUP BY l.scope
      UNION ALL
      SELECT c.scope, min(c.lease_until), false
      FROM {schema}.inbox_claim AS c
      WHERE c.ctid >= first_row AND c.ctid < end_row
      GROUP BY c.scope
    ) AS r
    JOIN {schema}.inbox_scope AS s ON s.scope = r.scope
    WHERE s.retention_seconds IS NOT NULL AND (NOT r.is_letter OR s.dead_letter_seconds IS NOT NULL)
  );
END $$;

-- One step of the sweep that all processes share: the next range of 128 blocks that may hold a row
-- past its retention. No row when no sweep is due, or another process sweeps. A sweep begins when
-- the shortest retention has passed by 1/64 since the last, once an hour at most and every second
-- at least; never while every scope keeps its keys for ever.
--
-- A sweep looks only where something is due. A row that is written after the look at its range is
-- not due before the shortest retention has passed, so the note of a range stays right as long as
-- retentions, and the places of rows, do: `basis` stands for both. Where a row was written before
-- the look and committed after it, the range is looked at later by as long as the transaction took.
-- A note from beyond the shortest retention was written while the clock was ahead.
CREATE FUNCTION {schema}.sweep_inboxes(
  OUT keys bigint, OUT dead_letters bigint, OUT claims bigint, OUT unknown_effects bigint, OUT is_last boolean
) RETURNS SETOF record
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  moment CONSTANT timestamptz := clock_timestamp();
  shortest CONSTANT interval := (SELECT make_interval(secs => min(s.retention_seconds)) FROM {schema}.inbox_scope AS s);
  sweep {schema}.inbox_sweep;
  blocks CONSTANT bigint := greatest(pg_relation_size('{schema}.inbox'), pg_relation_size('{schema}.dead_letter'),
                                     pg_relation_size('{schema}.inbox_claim')) / current_setting('block_size')::bigint;
  this_block bigint;
BEGIN
  PERFORM {schema}.forget_kept();
  IF shortest IS NULL THEN
    RETURN;
  END IF;
  SELECT w.* INTO sweep
  FROM {schema}.inbox_sweep AS w
  WHERE w.next_block > 0
    OR w.finished_at IS NULL
    OR w.finished_at > moment
    OR w.finished_at < moment - greatest(interval '1 second', least(interval '1 hour', shortest / 64))
  FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  PERFORM set_config('idle_in_transaction_session_timeout', '60s', true);

  IF sweep.next_block = 0 AND sweep.basis <> {schema}.sweep_basis() THEN
    DELETE FROM {schema}.inbox_sweep_range;
    UPDATE {schema}.inbox_sweep SET basis = {schema}.sweep_basis();
  END IF;
  this_block := coalesce(
    (SELECT min(r.first_block) FROM {schema}.inbox_sweep_range AS r
     WHERE r.first_block >= sweep.next_block AND NOT r.due_at BETWEEN moment AND moment + shortest),
    (SELECT max(r.first_block) + 128 FROM {schema}.inbox_sweep_range AS r),
    0
  );
  is_last := this_block >= blocks;
  IF is_last THEN
    DELETE FROM {schema}.inbox_sweep_range AS r WHERE r.first_block >= blocks;
    UPDATE {schema}.inbox_sweep SET next_block = 0, finished_at = clock_timestamp();
    keys := 0; dead_letters := 0; claims := 0; unknown_effects := 0;
    RETURN NEXT;
    RETURN;
  END IF;
  SELECT d.* INTO keys, dead_letters, claims, unknown_effects
  FROM {schema}.sweep_inbox(this_block, this_block + 128, false) AS d;
  INSERT INTO {schema}.inbox_sweep_range AS r (first_block, due_at)
  VALUES (this_block, least({schema}.sweep_due(this_block, this_block + 128), moment + shortest))
  ON CONFLICT ON CONSTRAINT inbox_sweep_range_pkey DO UPDATE SET due_at = excluded.due_at;
  UPDATE {schema}.inbox_sweep SET next_block = this_block + 128;
  RETURN NEXT;
END $$;
COMMENT ON FUNCTION {schema}.sweep_inboxes IS 'For consumers: one step in deleting rows older than the retentions of inbox_scope. No row when nothing is to be done.';

-- The notes of ranges depend on this: the cluster, the files of the tables, which VACUUM FULL
-- writes anew, and the retentions.
CREATE FUNCTION {schema}.sweep_basis() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
RETURN concat_ws(' ',
  (SELECT c.system_identifier FROM pg_control_system() AS c),
  pg_relation_filenode('{schema}.inbox'), pg_relation_filenode('{schema}.dead_letter'), pg_relation_filenode('{schema}.inbox_claim'),
  (SELECT md5(string_agg(concat_ws(' ', s.scope, coalesce(s.retention_seconds, 0), s.dead_letter_seconds), ', ' ORDER BY s.scope))
   FROM {schema}.inbox_scope AS s)
);
