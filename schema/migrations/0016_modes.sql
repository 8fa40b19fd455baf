-- The inbox: a scope claims its keys in one mode. Until a key has ended, the modes know it in
-- different tables, so processes of both would handle one message twice.

-- NULL: not known yet; the first process that uses the scope says it.
ALTER TABLE {schema}.inbox_scope
  ADD COLUMN mode text,
  ADD CONSTRAINT inbox_scope_mode CHECK (mode IN ('transaction', 'lease'));
COMMENT ON COLUMN {schema}.inbox_scope.mode IS 'transaction: keys are claimed in the handler''s transaction; lease: before it, under a lease. A process of the other mode is refused; see change_inbox_mode.';

CREATE FUNCTION {schema}.change_inbox_mode(inbox_scope text, new_mode text)
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
END $$;
COMMENT ON FUNCTION {schema}.change_inbox_mode(text, text) IS 'Lets a scope claim its keys in the other mode from now on. Stop all processes of the scope first: one that still runs would handle messages a second time.';
