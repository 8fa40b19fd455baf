-- Copies, many at once: a stream that is read again, or a relay that has lost an acknowledgement,
-- brings messages that an inbox has handled. To acknowledge them a consumer needs neither a
-- transaction nor a handler, only to know that their keys have ended.

-- For each place the answer to a copy, replayed or rejected, or NULL: claim the message. As
-- claim_batch(), it leaves a key alone that is of another payload, dead, in flight or to be pruned;
-- and one with attempts, which forget_attempts() takes away after the claim.
-- Locking: none. It reads committed rows, and the claims of this transaction itself; and a key that
-- has ended stays so.
-- OFFSET 0 keeps each key a look into the primary keys, however many rows there are.
CREATE FUNCTION {schema}.look_up_copies(scope text, tenants text[], keys text[], fingerprints bytea[]) RETURNS text[]
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  asked integer := cardinality(look_up_copies.keys);
BEGIN
  IF asked IS NULL OR asked > 1000
     OR (cardinality(look_up_copies.tenants), cardinality(look_up_copies.fingerprints)) IS DISTINCT FROM (asked, asked) THEN
    RAISE EXCEPTION '% keys, % tenants and % fingerprints are looked up', coalesce(asked, 0),
      coalesce(cardinality(look_up_copies.tenants), 0), coalesce(cardinality(look_up_copies.fingerprints), 0)
      USING ERRCODE = 'OB011', HINT = 'At most 1000 keys are looked up at once, each with a tenant and a fingerprint.';
  END IF;
  RETURN ARRAY(
    SELECT s.answer
    FROM unnest(look_up_copies.tenants, look_up_copies.keys, look_up_copies.fingerprints)
      WITH ORDINALITY AS w (tenant, key, fingerprint, place)
    LEFT JOIN LATERAL (
      SELECT CASE r.status WHEN 'completed' THEN 'replayed' ELSE r.status END AS answer
      FROM {schema}.inbox AS r
      JOIN {schema}.inbox_scope AS t ON t.scope = r.scope
      WHERE r.scope = look_up_copies.scope AND r.tenant = w.tenant AND r.key = w.key
        AND r.status IN ('completed', 'rejected')
        AND r.fingerprint = w.fingerprint
        AND t.mode = 'transaction'
        AND NOT coalesce(r.created_at < statement_timestamp() - make_interval(secs => t.retention_seconds), false)
        AND (pg_current_xact_id_if_assigned() IS NULL OR NOT {schema}.is_own(r.xmin))
        AND NOT EXISTS (
          SELECT FROM {schema}.inbox_attempt AS a WHERE a.scope = r.scope AND a.tenant = r.tenant AND a.key = r.key
        )
      OFFSET 0
    ) AS s ON true
    ORDER BY w.place
  );
END $$;
COMMENT ON FUNCTION {schema}.look_up_copies IS 'Which messages are copies that need no claim: for each place replayed or rejected, which are acknowledged, or NULL: claim it. Reads only, and takes no lock. A fingerprint is inbox_fingerprint(payload).';
