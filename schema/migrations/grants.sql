-- Run at the end of every migration: four roles that own nothing and can log in nowhere; grant them
-- to yours. {name} is the beginning of their names: table installation. A migrating user who may
-- not create roles still gets a working schema; an administrator creates the four roles later and
-- runs the migration again.
DO $$
DECLARE
  wanted text;
BEGIN
  FOREACH wanted IN ARRAY ARRAY['{name}_producer', '{name}_relay', '{name}_consumer', '{name}_operator'] LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
      BEGIN
        EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
      EXCEPTION
        WHEN duplicate_object OR unique_violation THEN NULL;  -- another database of this cluster was faster
        WHEN insufficient_privilege THEN
          RAISE WARNING 'role "%" does not exist and user "%" may not create it', wanted, current_user
            USING HINT = 'Have an administrator create it, then run the migration again.';
      END;
    END IF;
  END LOOP;
END $$;

REVOKE ALL ON SCHEMA {schema} FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA {schema} FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC;

DO $$
BEGIN
  IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{name}_producer') THEN
    GRANT USAGE ON SCHEMA {schema} TO "{name}_producer";
    GRANT SELECT ON {schema}.migration TO "{name}_producer";
    GRANT EXECUTE ON FUNCTION
      {schema}.enqueue(text, text, bytea, jsonb, text),
      {schema}.enqueue_json(text, text, jsonb, jsonb, text),
      {schema}.enqueue_all(text[], text[], bytea[], jsonb[], text[]),
      {schema}.enqueue_at(text, text, bytea, timestamptz, jsonb, text),
      {schema}.enqueue_json_at(text, text, jsonb, timestamptz, jsonb, text),
      {schema}.cancel_delayed(text), {schema}.list_delayed(text, integer),
      {schema}.root_key(text), {schema}.step_key(text, text), {schema}.part_key(text, bigint),
      {schema}.undo_key(text), {schema}.check_key(text)
      TO "{name}_producer";
    -- Who starts a saga; its data are not for every producer.
    GRANT EXECUTE ON FUNCTION
      {schema}.start_saga(text, text, jsonb, integer),
      {schema}.write_saga(
        text, text, text, integer, text, text, double precision, double precision, text, bytea, text[], text[], integer[],
        integer[], boolean[], text[], bytea[], text[], bytea[], text[], double precision[]),
      {schema}.find_saga(text, text, text, bytea)
      TO "{name}_producer";
  END IF;
  IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{name}_relay') THEN
    GRANT USAGE ON SCHEMA {schema} TO "{name}_relay";
    GRANT SELECT ON {schema}.migration, {schema}.message, {schema}.log, {schema}.lane_cursor, {schema}.outbox TO "{name}_relay";
    GRANT SELECT ON {schema}.message_0, {schema}.message_1, {schema}.message_2, {schema}.message_3, {schema}.message_4, {schema}.message_5, {schema}.message_6, {schema}.message_7, {schema}.segment TO "{name}_relay";
    GRANT SELECT ON SEQUENCE {schema}.turn TO "{name}_relay";
    GRANT SELECT, INSERT, UPDATE ON {schema}.home TO "{name}_relay";
    GRANT SELECT ON {schema}.home_here TO "{name}_relay";
    -- Ids that stand too low, and the rows that were written with them.
    GRANT SELECT ON {schema}.message_ids TO "{name}_relay";
    GRANT SELECT, INSERT, UPDATE ON {schema}.reset TO "{name}_relay";
    GRANT EXECUTE ON FUNCTION {schema}.repair_ids(), {schema}.written_by(xid), {schema}.lane_count() TO "{name}_relay";
    GRANT EXECUTE ON FUNCTION {schema}.headers_text(jsonb), {schema}.readable_headers(jsonb) TO "{name}_relay";
    -- Delayed messages: how many there are, and the move of those that are due.
    GRANT SELECT ON {schema}.delayed TO "{name}_relay";
    GRANT EXECUTE ON FUNCTION {schema}.move_delayed(integer, bigint, timestamptz, bigint) TO "{name}_relay";
    -- Metrics of sagas, and a trace; not their data, nor their commands' payloads.
    GRANT SELECT (id, type, business_id, key, version, fingerprint, state, direction, reason, due_at, created_at, changed_at,
                  deadline_at, finished_at, scope)
      ON {schema}.saga TO "{name}_relay";
    GRANT SELECT (fingerprint, type, version, reply_to) ON {schema}.saga_definition TO "{name}_relay";
    GRANT SELECT ON {schema}.saga_leader TO "{name}_relay";
    GRANT SELECT (saga_id, step, state, attempt, undo_attempt, subject, undo_subject, reason, deadline_at, sent_at,
                  answered_at, undo_sent_at, undone_at)
      ON {schema}.saga_step TO "{name}_relay";
    -- Metrics of inboxes; neither payloads nor outcomes.
    GRANT SELECT (scope, tenant, key, message, failed_at, reason) ON {schema}.inbox_attempt TO "{name}_relay";
    GRANT SELECT (scope, tenant, key, created_at) ON {schema}.inbox TO "{name}_relay";
    GRANT EXECUTE ON FUNCTION {schema}.inbox_places(integer) TO "{name}_relay";
    GRANT SELECT, INSERT, DELETE ON {schema}.history TO "{name}_relay";
    GRANT SELECT (scope, stream) ON {schema}.dead_letter TO "{name}_relay";
    GRANT SELECT (scope, due_at) ON {schema}.inbox_snooze TO "{name}_relay";
    GRANT SELECT ON {schema}.inbox_scope TO "{name}_relay";
    -- For the doctor.
    GRANT SELECT ON {schema}.installation TO "{name}_relay";
    -- Retention: the ring of segments.
    GRANT EXECUTE ON FUNCTION
      {schema}.end_turn(float8, integer, float8), {schema}.drain_segments(), {schema}.find_unsent(float8, integer),
      {schema}.empty_segment(float8), {schema}.forget_emptied(integer), {schema}.forget_kept()
      TO "{name}_relay";
    GRANT SELECT ON {schema}.discarded, {schema}.replay TO "{name}_relay";
    GRANT SELECT, INSERT, DELETE, UPDATE (reached_at) ON {schema}.milestone TO "{name}_relay";
    GRANT SELECT, UPDATE ON {schema}.maintenance TO "{name}_relay";
    GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.maintenance_fault TO "{name}_relay";
    GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.relay TO "{name}_relay";
    -- Locking a lane's row asks for UPDATE, though none is ever updated.
    GRANT SELECT, UPDATE ON {schema}.lane TO "{name}_relay";
    GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.cursor TO "{name}_relay";
    GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.parked TO "{name}_relay";
    GRANT SELECT ON {schema}.pause TO "{name}_relay";
    GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.throttle TO "{name}_relay";
    -- Receipts, and losses of streams.
    GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.receipt, {schema}.late_receipt TO "{name}_relay";
    GRANT SELECT, INSERT, UPDATE ON {schema}.stream TO "{name}_relay";
    GRANT SELECT, UPDATE (ended_at) ON {schema}.loss TO "{name}_relay";
    GRANT EXECUTE ON FUNCTION
      {schema}.note_loss(smallint, text, bigint, text, bigint, bigint),
      {schema}.resend_lost(smallint, text, timestamptz)
      TO "{name}_relay";
    GRANT SELECT, UPDATE ON SEQUENCE {schema}.relay_asleep TO "{name}_relay";
    -- Expected arrival.
    GRANT SELECT ON {schema}.expectation TO "{name}_relay";
    GRANT EXECUTE ON FUNCTION
      {schema}.look_for_unhandled(), {schema}.expected_messages(bigint, xid8, xid8), {schema}.arrived_keys(text, text[]),
      {schema}.note_unhandled(bigint, xid8, xid8, smallint[], bigint[])
      TO "{name}_relay";
    -- The steps of canaries, which operators begin.
    GRANT SELECT (id, state) ON {schema}.canary TO "{name}_relay";
    GRANT EXECUTE ON FUNCTION
      {schema}.running_canaries(), {schema}.take_canary_step(bigint), {schema}.note_canary_fault(bigint, text)
      TO "{name}_relay";
  END IF;
  IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{name}_operator') THEN
    GRANT USAGE ON SCHEMA {schema} TO "{name}_operator";
    GRANT SELECT ON {schema}.migration, {schema}.message, {schema}.log, {schema}.lane_cursor, {schema}.milestone TO "{name}_operator";
    GRANT SELECT ON {schema}.outbox, {schema}.reset, {schema}.message_ids, {schema}.installation TO "{name}_operator";
    GRANT SELECT ON {schema}.home, {schema}.home_here TO "{name}_operator";
    GRANT EXECUTE ON FUNCTION {schema}.adopt(boolean, boolean, text, text) TO "{name}_operator";
    GRANT EXECUTE ON FUNCTION {schema}.headers_text(jsonb), {schema}.readable_headers(jsonb) TO "{name}_operator";
    GRANT EXECUTE ON FUNCTION {schema}.written_by(xid), {schema}.turn_of(oid), {schema}.lane_count() TO "{name}_operator";
    GRANT SELECT ON {schema}.message_0, {schema}.message_1, {schema}.message_2, {schema}.message_3, {schema}.message_4, {schema}.message_5, {schema}.message_6, {schema}.message_7,
      {schema}.segment TO "{name}_operator";
    GRANT SELECT ON SEQUENCE {schema}.turn TO "{name}_operator";
    GRANT EXECUTE ON FUNCTION {schema}.old_segments(float8), {schema}.count_segment(smallint), {schema}.count_lost(smallint, text, timestamptz)
      TO "{name}_operator";
    GRANT EXECUTE ON FUNCTION {schema}.lane_of(text) TO "{name}_operator";
    GRANT SELECT ON {schema}.delayed, {schema}.barrier TO "{name}_operator";
    GRANT SELECT ON {schema}.saga, {schema}.saga_step, {schema}.saga_event, {schema}.saga_definition, {schema}.saga_leader
      TO "{name}_operator";
    GRANT SELECT ON {schema}.lane, {schema}.parked, {schema}.replay, {schema}.discarded, {schema}.event_kind, {schema}.pause,
      {schema}.audit
      TO "{name}_operator";
    GRANT SELECT ON {schema}.maintenance TO "{name}_operator";
    -- Whether a discard can be taken back; not its payload.
    GRANT SELECT (audit) ON {schema}.kept TO "{name}_operator";
    GRANT SELECT ON {schema}.canary, {schema}.canary_row TO "{name}_operator";
    -- All that operators change. Each function writes the audit: no table is open to them.
    GRANT EXECUTE ON FUNCTION
      {schema}.retry_dead(smallint, bigint[], text, text), {schema}.retry_parked(smallint, bigint[], text, text),
      {schema}.give_up_parked(smallint, bigint[], text, text, text),
      {schema}.replay_messages(smallint, bigint[], text, text, text),
      {schema}.cancel_delayed_messages(text[], text, text),
      {schema}.pause_delivery(text, text, double precision, text[], text, text, text, timestamptz, double precision),
      {schema}.resume_delivery(text, text, text, text),
      {schema}.resend_missing(smallint, bigint[], text, text, text),
      {schema}.prune_segment(float8, text, text, text), {schema}.prune_inbox(bigint, bigint, boolean, text, text),
      {schema}.resend_loss(smallint, text, timestamptz, text, text),
      {schema}.enable_events(text[], text, text), {schema}.disable_events(text[], text, text),
      {schema}.retry_saga_as(bigint, text, text, text), {schema}.skip_saga_step_as(bigint, text, text, text, jsonb),
      {schema}.abandon_saga_as(bigint, text, text, text),
      {schema}.discard_letters(bigint[], text, text), {schema}.retry_letter(bigint, text, text),
      {schema}.retry_in_line(bigint, text, text),
      {schema}.undo_rows(bigint), {schema}.undo_discard(bigint, text, text),
      {schema}.content_digest(jsonb, bytea),
      {schema}.edit_dead(smallint, bigint, jsonb, bytea, bytea, text, text),
      {schema}.edit_letter(bigint, jsonb, bytea, bytea, text, text),
      {schema}.begin_canary(text, smallint[], bigint[], double precision, text, text),
      {schema}.stop_canary(bigint, text, text), {schema}.continue_canary(bigint, text, text),
      {schema}.retry_failing(text, text, text, text, text, text),
      {schema}.forget_failing(text, text, text, text, text, text),
      {schema}.bury_failing(text, text, text, bytea, text, jsonb, text, bigint, timestamptz, bigint, text, text, text)
      TO "{name}_operator";
    -- Losses of streams, and their repair.
    GRANT SELECT ON {schema}.loss, {schema}.receipt, {schema}.stream, {schema}.maintenance_fault TO "{name}_operator";
    GRANT SELECT ON {schema}.inbox_scope, {schema}.inbox_snooze, {schema}.inbox_attempt, {schema}.relay,
      {schema}.dead_letter, {schema}.inbox_behind, {schema}.inbox
      TO "{name}_operator";
    -- Claims and effects that have not ended: not the results of effects.
    GRANT SELECT (scope, tenant, key, owner, state, lease_until, attempts, reason, created_at)
      ON {schema}.inbox_claim TO "{name}_operator";
    GRANT SELECT (scope, tenant, key, step, state, started_at) ON {schema}.inbox_effect TO "{name}_operator";
    -- Where a stream stored a message, and which session is at work on its key.
    GRANT SELECT (lane, id, replay, stream, sequence) ON {schema}.late_receipt TO "{name}_operator";
    GRANT EXECUTE ON FUNCTION {schema}.inbox_lock(text, text, text) TO "{name}_operator";
    GRANT EXECUTE ON FUNCTION {schema}.change_inbox_mode(text, text, text, text),
      {schema}.change_scope(text, interval, interval, text, text, text) TO "{name}_operator";
    GRANT SELECT ON {schema}.history TO "{name}_operator";
    GRANT EXECUTE ON FUNCTION {schema}.inbox_places(integer), {schema}.decode_response(bytea) TO "{name}_operator";
    GRANT SELECT ON {schema}.expectation, {schema}.unhandled TO "{name}_operator";
    GRANT EXECUTE ON FUNCTION
      {schema}.expect(text, text, double precision, text, boolean, text, text),
      {schema}.check_expected_inbox(text, double precision, boolean, text), {schema}.expect_no_more(text, text, text, text)
      TO "{name}_operator";
  END IF;
  IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{name}_consumer') THEN
    GRANT USAGE ON SCHEMA {schema} TO "{name}_consumer";
    GRANT SELECT ON {schema}.migration TO "{name}_consumer";
    GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.inbox TO "{name}_consumer";
    GRANT SELECT, INSERT, DELETE ON {schema}.dead_letter TO "{name}_consumer";
    GRANT SELECT ON {schema}.inbox_behind TO "{name}_consumer";
    GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.inbox_claim, {schema}.inbox_effect TO "{name}_consumer";
    GRANT SELECT, INSERT, DELETE ON {schema}.inbox_batch TO "{name}_consumer";
    GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.inbox_snooze, {schema}.inbox_attempt TO "{name}_consumer";
    GRANT SELECT, INSERT, UPDATE ON {schema}.inbox_scope TO "{name}_consumer";
    GRANT EXECUTE ON FUNCTION {schema}.sweep_inboxes() TO "{name}_consumer";
    -- Consumers in other languages.
    GRANT EXECUTE ON FUNCTION
      {schema}.register_scope(text, interval, interval, text, text), {schema}.claim(text, text, bytea, text, bigint),
      {schema}.settle(text, text, json, text, text),
      {schema}.claim_batch(text, text[], text[], bytea[], bigint[], interval),
      {schema}.settle_batch(text, text[], text[], text[], text[], text[], text[]),
      {schema}.look_up_copies(text, text[], text[], bytea[]),
      {schema}.claim_keys(text, bigint[], text[], text[], bytea[], bigint[]),
      {schema}.attempt_failed(
        text, text, text, text, bigint, timestamptz, text, text, double precision, double precision, bigint),
      {schema}.begin_attempt(text, text, text, text, bigint, timestamptz, text, bigint, boolean),
      {schema}.cancel_attempt(text, text, text, text, bigint, timestamptz),
      {schema}.pause_left(text, text, text, text, bigint, timestamptz),
      {schema}.lead_consumer(text, text, text, interval), {schema}.consumer_place(text, text, text),
      {schema}.continue_consumer(text, text, text, bigint, boolean),
      {schema}.follow_lines(text, integer),
      {schema}.wait_in_line(text, text, bytea, text, jsonb, text, text, bigint, timestamptz),
      {schema}.next_in_line(text, text, bigint), {schema}.end_in_line(text, bigint, bigint),
      {schema}.forget_attempts(text, text, text),
      {schema}.claim_leased(text, text, bytea, uuid, interval, text, bigint, boolean),
      {schema}.renew_lease(text, text, uuid, bigint, interval, text),
      {schema}.begin_effect(text, text, uuid, bigint, interval, text, text),
      {schema}.begin_effect_again(text, text, uuid, bigint, interval, text, text),
      {schema}.end_effect(text, text, uuid, bigint, interval, text, text, json, text, text),
      {schema}.finish_leased(text, text, uuid, bigint, json, text, text),
      {schema}.end_leased(text, text, text, uuid, bigint, text, bytea),
      {schema}.release_leased(text, text, uuid, bigint, interval, text, boolean, boolean, text),
      {schema}.bury_leased(
        text, text, uuid, bigint, bytea, text, text, jsonb, text, text, bigint, timestamptz, bigint),
      {schema}.snooze(text, text, interval, text, text, text, bigint, timestamptz, bigint, interval),
      {schema}.record_snooze(text, text, text, text, bigint, timestamptz, bigint, interval, interval, text),
      {schema}.bury(text, text, bytea, text, text, jsonb, text, bigint, text, bigint, timestamptz, bigint, xid8)
      TO "{name}_consumer";
    -- Requests with an Idempotency-Key in other languages.
    GRANT EXECUTE ON FUNCTION
      {schema}.sized(bytea), {schema}.media_type(text),
      {schema}.request_fingerprint(text, text, text, jsonb, text, bytea),
      {schema}.claim_request(text, text, text, bytea),
      {schema}.settle_request(text, text, text, boolean, integer, jsonb, bytea)
      TO "{name}_consumer";
    -- Participants of sagas.
    GRANT EXECUTE ON FUNCTION
      {schema}.enter_action(text, text, text, boolean, integer), {schema}.end_action(text, text, text, boolean, integer),
      {schema}.enter_compensation(text, text, text, boolean, integer, text),
      {schema}.end_compensation(text, text, text, boolean, integer),
      {schema}.sweep_barrier(text, interval, integer)
      TO "{name}_consumer";
    -- Orchestrators of sagas, which are producers too.
    GRANT EXECUTE ON FUNCTION
      {schema}.start_saga(text, text, jsonb, integer),
      {schema}.write_saga(
        text, text, text, integer, text, text, double precision, double precision, text, bytea, text[], text[], integer[],
        integer[], boolean[], text[], bytea[], text[], bytea[], text[], double precision[]),
      {schema}.find_saga(text, text, text, bytea)
      TO "{name}_consumer";
    GRANT SELECT, INSERT, UPDATE ON {schema}.saga, {schema}.saga_step TO "{name}_consumer";
    GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.saga_event TO "{name}_consumer";
    GRANT SELECT ON {schema}.saga_definition TO "{name}_consumer";
    GRANT SELECT, INSERT, UPDATE ON {schema}.saga_leader TO "{name}_consumer";
    GRANT EXECUTE ON FUNCTION {schema}.register_saga(text, text, integer, jsonb, jsonb, text, text) TO "{name}_consumer";
    GRANT EXECUTE ON FUNCTION {schema}.sweep_sagas(interval, integer) TO "{name}_consumer";
  END IF;
END $$;

-- Default privileges of the migrating user (ALTER DEFAULT PRIVILEGES) may have given others rights
-- to delete messages or move cursors. They keep the rights of a producer or a consumer, and SELECT,
-- of which `oncebox doctor` warns.
DO $$
DECLARE
  given record;
BEGIN
  FOR given IN
    WITH own AS (
      SELECT r.oid FROM pg_roles AS r
      WHERE r.rolname IN ('{name}_producer', '{name}_relay', '{name}_consumer', '{name}_operator')
    ),
    open AS (
      SELECT r.oid FROM pg_roles AS r WHERE r.rolname IN ('{name}_producer', '{name}_consumer')
    ),
    object AS (
      SELECT c.relacl AS acl, c.relowner AS owner, CASE c.relkind WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END || c.oid::regclass AS name
      FROM pg_class AS c
      WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S')
      UNION ALL
      SELECT p.proacl, p.proowner, 'FUNCTION ' || p.oid::regprocedure
      FROM pg_proc AS p
      WHERE p.pronamespace = '{schema}'::regnamespace
    )
    SELECT o.name, a.privilege_type, CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(r.rolname) END AS grantee
    FROM object AS o
    CROSS JOIN LATERAL aclexplode(o.acl) AS a
    LEFT JOIN pg_roles AS r ON r.oid = a.grantee
    WHERE a.grantee <> o.owner
      AND a.privilege_type <> 'SELECT'
      AND a.grantee NOT IN (SELECT own.oid FROM own)
      -- The roles of before a change of --role-prefix, until DROP OWNED BY.
      AND (r.rolcanlogin OR coalesce(r.rolname, '') !~ '_(producer|relay|consumer|operator)$')
      AND (a.grantee = 0 OR r.rolname IS NOT NULL)
      AND NOT EXISTS (
        SELECT
        FROM aclexplode(o.acl) AS b
        WHERE b.privilege_type = a.privilege_type AND b.grantee IN (SELECT open.oid FROM open)
      )
  LOOP
    EXECUTE format('REVOKE %s ON %s FROM %s CASCADE', given.privilege_type, given.name, given.grantee);
  END LOOP;
END $$;
