//! Least privilege: each role may do only its part, and no role can misuse the functions that run
//! with their owner's rights.

use oncebox_schema::{Lanes, SchemaName, migrate};
use oncebox_tests::TestEnv;
use tokio_postgres::{Client, error::SqlState};

use crate::relay::support::client;

const ENQUEUE: &str = "SELECT oncebox.enqueue('k', 's', 'p')";

/// Statements that a login might try, and the roles that may run them: p(roducer), r(elay),
/// c(onsumer), o(perator).
const RIGHTS: &[(&str, &str)] = &[
    ("p", ENQUEUE),
    ("p", "SELECT oncebox.enqueue_json('kj', 's', '{}', '{\"a\": \"b\"}', 'o')"),
    ("p", "SELECT * FROM oncebox.enqueue_all('{ka}', '{s}', '{p}')"),
    ("p", "SELECT oncebox.undo_key(oncebox.part_key(oncebox.step_key(oncebox.root_key('a:b'), 'c'), 3))"),
    ("p", "SELECT oncebox.check_key('a')"),
    ("p", "SELECT oncebox.enqueue_at('kd', 's', 'p', clock_timestamp() + interval '1 h')"),
    ("p", "SELECT * FROM oncebox.list_delayed('kd')"),
    ("p", "SELECT oncebox.enqueue_json_at('kjd', 's', '{}', clock_timestamp() + interval '1 h')"),
    ("p", "SELECT oncebox.cancel_delayed('kd')"),
    ("r", "SELECT oncebox.move_delayed(1, 1, '-infinity', 0)"),
    ("ro", "SELECT * FROM oncebox.delayed"),
    ("", "DELETE FROM oncebox.delayed"),
    ("", "SELECT * FROM oncebox.delayed_mover FOR UPDATE"),
    ("c", "SELECT oncebox.register_scope('s')"),
    ("c", "SELECT set_config('default_transaction_deferrable', 'on', true), oncebox.claim('s', 'k', 'p')"),
    (
        "c",
        "SELECT set_config('default_transaction_deferrable', 'on', true), oncebox.claim('s', 'k', 'p'), oncebox.settle('s', 'k')",
    ),
    (
        "c",
        "SELECT set_config('default_transaction_deferrable', 'on', true),
                oncebox.claim_request('s', '', 'k', oncebox.request_fingerprint('POST', '/', '', '[]', 'multipart/a; boundary=b', 'p')),
                oncebox.settle_request('s', '', 'k', false, 200, '[]', 'b')",
    ),
    ("o", "SELECT oncebox.decode_response('')"),
    ("c", "SELECT oncebox.attempt_failed('s', 'k')"),
    (
        "c",
        "SELECT oncebox.attempt_failed('s', 'k', reason => 'r', subject => 's', pause => 1, pause_max => 2)",
    ),
    ("c", "SELECT oncebox.forget_attempts('s', 'k')"),
    ("c", "SELECT oncebox.follow_lines('s', 3)"),
    ("c", "SELECT oncebox.wait_in_line('s', 'k', 'p', 's', '{}', '', 'S', 1, now())"),
    ("c", "SELECT * FROM oncebox.next_in_line('s', 'S', 0)"),
    ("c", "SELECT oncebox.end_in_line('s', 1, 1)"),
    ("", "SELECT oncebox.advance_line('s', 'o')"),
    ("o", "SELECT oncebox.begin_canary('letter', NULL, '{1}', 9, 'mina', NULL)"),
    ("o", "SELECT oncebox.stop_canary(1, 'mina', NULL)"),
    ("o", "SELECT oncebox.continue_canary(1, 'mina', NULL)"),
    ("r", "SELECT oncebox.take_canary_step(1)"),
    ("r", "SELECT oncebox.note_canary_fault(1, 'no')"),
    ("r", "SELECT oncebox.running_canaries()"),
    ("ro", "SELECT state FROM oncebox.canary"),
    ("o", "SELECT * FROM oncebox.canary, oncebox.canary_row"),
    ("", "INSERT INTO oncebox.canary (kind, watch_seconds, command) VALUES ('letter', 9, 'c')"),
    ("", "UPDATE oncebox.canary SET state = 'running', ended_at = NULL"),
    ("", "UPDATE oncebox.canary_row SET id = 2"),
    ("", "DELETE FROM oncebox.canary"),
    ("o", "SELECT oncebox.retry_in_line(1, 'mina', NULL)"),
    ("co", "SELECT * FROM oncebox.inbox_behind"),
    ("", "DELETE FROM oncebox.inbox_behind"),
    ("c", "SELECT oncebox.bury('s', 'k', 'p', 'no', 's')"),
    ("o", "SELECT oncebox.bury_failing('s', '', 'k', 'p', 's', '{}', 'S', 1, now(), 1, 'no', 'mina', NULL)"),
    ("", "SELECT oncebox.bounded_reason('no')"),
    ("c", "UPDATE oncebox.inbox_attempt SET due_at = now()"),
    ("c", "UPDATE oncebox.inbox_attempt SET failures = 0"),
    ("c", "UPDATE oncebox.inbox_claim SET lease_until = now() WHERE state <> 'running'"),
    ("c", "SELECT * FROM oncebox.claim_keys('s', '{1}', '{t}', '{k}', '{f}', '{NULL}')"),
    ("c", "SELECT oncebox.end_leased('s', '', 'k', gen_random_uuid(), 1, 'dead', NULL)"),
    ("c", "SELECT oncebox.record_snooze('s', '', 'k', NULL, NULL, NULL, 1, '1 s', '1 h', 'no')"),
    ("", "SELECT oncebox.claim_key('s', '', 'k', '', NULL, 'completed', NULL)"),
    ("", "SELECT oncebox.settle_key('s', '', 'k', 'completed', NULL)"),
    ("", "SELECT oncebox.forget_tries('s', '', 'k')"),
    (
        "",
        "SELECT oncebox.give_up_leased('s', '', 'k', gen_random_uuid(), 1, 's', '{}', '', NULL, NULL, NULL, 1, 'no')",
    ),
    ("", "SELECT oncebox.look_up_key('s', '', 'k', '', 0)"),
    ("", "SELECT oncebox.record_dead_letter('s', '', 'k', 's', '{}', '', NULL, NULL, NULL, 1, 'no')"),
    ("c", "SELECT oncebox.enter_action('b', '', 'k', true)"),
    ("c", "SELECT oncebox.enter_action('b', '', 'k', true), oncebox.end_action('b', '', 'k', false)"),
    ("c", "SELECT oncebox.enter_compensation('b', '', 'k', false)"),
    (
        "c",
        "SELECT oncebox.enter_action('b', '', 'k', true), oncebox.end_action('b', '', 'k', true),
                oncebox.enter_compensation('b', '', 'k', true), oncebox.end_compensation('b', '', 'k', false)",
    ),
    ("c", "SELECT oncebox.sweep_barrier('b', '1 day', 10)"),
    ("o", "SELECT * FROM oncebox.barrier"),
    ("", "DELETE FROM oncebox.barrier"),
    ("co", "SELECT data FROM oncebox.saga"),
    ("rco", "SELECT state, changed_at FROM oncebox.saga"),
    (
        "c",
        "INSERT INTO oncebox.saga_step (saga_id, step, state, attempt, subject, payload, sent_at) SELECT id, 's', 'sent', 1, 's', '', now() FROM oncebox.saga",
    ),
    ("c", "UPDATE oncebox.saga SET revision = 2"),
    ("c", "UPDATE oncebox.saga_step SET attempt = 2"),
    ("c", "DELETE FROM oncebox.saga_event"),
    ("co", "SELECT * FROM oncebox.saga_event"),
    ("co", "SELECT * FROM oncebox.saga_definition"),
    ("rco", "SELECT * FROM oncebox.saga_leader"),
    ("rco", "SELECT scope FROM oncebox.saga"),
    ("rco", "SELECT reply_to FROM oncebox.saga_definition"),
    ("c", "INSERT INTO oncebox.saga_leader (scope, fingerprint) VALUES ('s', 'f')"),
    ("", "DELETE FROM oncebox.saga_leader"),
    (
        "c",
        "SELECT oncebox.register_saga('f', 't', 1, '[]')",
    ),
    ("", "DELETE FROM oncebox.saga"),
    ("c", "SELECT oncebox.sweep_sagas('1 day', 10)"),
    ("", "SELECT oncebox.abandon_saga(1, 'why')"),
    ("o", "SELECT * FROM oncebox.abandon_saga_as(1, 'why', 'mina', NULL)"),
    ("o", "SELECT * FROM oncebox.skip_saga_step_as(9, 's', 'mina', NULL)"),
    ("o", "SELECT * FROM oncebox.retry_saga_as(9, NULL, 'mina', NULL)"),
    (
        "pc",
        "SELECT oncebox.write_saga('t', 'b', 'k', 1, 'f', '{}', NULL, 1, 's', '', '{s}', '{sent}', '{1}', '{0}', '{f}', '{s}',
                '{p}', '{NULL}', '{NULL}', '{NULL}', '{NULL}')",
    ),
    ("pc", "SELECT * FROM oncebox.find_saga('t', 'b', 'k', '')"),
    ("", "SELECT oncebox.check_enqueued('seed', 's', 'p')"),
    ("", "SELECT oncebox.wake_relay()"),
    ("", "INSERT INTO oncebox.message_0 (lane, key, subject, payload) VALUES (0, 'x', 's', 'p')"),
    ("", "UPDATE oncebox.message_0 SET subject = 's'"),
    ("", "DELETE FROM oncebox.message_0"),
    ("", "TRUNCATE oncebox.message_0"),
    ("", "UPDATE oncebox.segment SET is_live = false"),
    ("", "SELECT setval('oncebox.turn', 9)"),
    ("r", "SELECT oncebox.end_turn(3600, 50, 0)"),
    ("r", "SELECT oncebox.drain_segments()"),
    ("r", "SELECT * FROM oncebox.empty_segment(3600)"),
    ("r", "SELECT * FROM oncebox.find_unsent(3600, 10)"),
    ("r", "SELECT oncebox.forget_emptied(10)"),
    ("ro", "SELECT key FROM oncebox.message_7"),
    ("ro", "SELECT key, payload FROM oncebox.message"),
    ("o", "SELECT * FROM oncebox.message"),
    ("r", "SELECT * FROM oncebox.lane FOR UPDATE SKIP LOCKED"),
    ("r", "UPDATE oncebox.cursor SET high = high"),
    ("", "INSERT INTO oncebox.lane (lane) VALUES (99)"),
    ("", "DELETE FROM oncebox.lane"),
    ("r", "INSERT INTO oncebox.parked (lane, id, turn, attempts, error, key, subject, headers, payload, created_at)
             VALUES (0, 99, 0, 1, 'e', 'k', 's', '{}', '', now())"),
    ("r", "UPDATE oncebox.parked SET attempts = 2"),
    ("r", "DELETE FROM oncebox.parked"),
    ("ro", "SELECT * FROM oncebox.maintenance"),
    ("r", "SELECT * FROM oncebox.maintenance FOR UPDATE SKIP LOCKED"),
    ("", "DELETE FROM oncebox.maintenance"),
    ("r", "DELETE FROM oncebox.milestone"),
    ("", "INSERT INTO oncebox.discarded (lane, id) VALUES (0, 1)"),
    ("", "DELETE FROM oncebox.discarded"),
    ("", "UPDATE oncebox.replay SET number = 2"),
    ("", "INSERT INTO oncebox.audit (action, operator) VALUES ('prune', 'mina')"),
    ("", "INSERT INTO oncebox.audit (action, operator, scope) VALUES ('retry', 'mina', 's')"),
    ("", "INSERT INTO oncebox.audit (action, database_user) VALUES ('prune', 'somebody else')"),
    ("", "UPDATE oncebox.audit SET operator = 'somebody else'"),
    ("", "DELETE FROM oncebox.audit"),
    ("r", "SELECT setval('oncebox.relay_asleep', 1)"),
    ("r", "SELECT system_identifier FROM pg_control_system()"),
    ("co", "SELECT * FROM oncebox.inbox"),
    (
        "c",
        "INSERT INTO oncebox.inbox (scope, tenant, key, fingerprint, status) VALUES ('s', '', 'k', sha256('x'), 'completed')",
    ),
    ("c", "UPDATE oncebox.inbox SET status = 'dead'"),
    ("c", "DELETE FROM oncebox.inbox"),
    ("c", "SELECT * FROM oncebox.inbox_claim"),
    ("c", "DELETE FROM oncebox.inbox_claim"),
    ("c", "UPDATE oncebox.inbox_effect SET epoch = 1"),
    ("c", "DELETE FROM oncebox.inbox_effect"),
    ("c", "WITH batch AS (INSERT INTO oncebox.inbox_batch DEFAULT VALUES) DELETE FROM oncebox.inbox_batch"),
    ("", "INSERT INTO oncebox.inbox_batch_end VALUES ('1')"),
    ("rco", "SELECT * FROM oncebox.inbox_scope"),
    ("c", "INSERT INTO oncebox.inbox_scope (scope) VALUES ('s')"),
    ("c", "SELECT * FROM oncebox.sweep_inboxes()"),
    ("", "UPDATE oncebox.inbox_sweep SET next_block = 1"),
    ("", "DELETE FROM oncebox.inbox_sweep"),
    ("c", "SELECT oncebox.consumer_place('s', 'd', '2026-01-01T00:00:00Z')"),
    ("", "SELECT * FROM oncebox.sweep_inbox(0, 9, false)"),
    ("o", "SELECT * FROM oncebox.prune_inbox(0, 9, false, 'mina', NULL)"),
    ("co", "SELECT * FROM oncebox.dead_letter"),
    ("c", "DELETE FROM oncebox.dead_letter"),
    ("", "DELETE FROM oncebox.pause"),
    ("", "INSERT INTO oncebox.event_kind VALUES ('dead')"),
    ("o", "SELECT oncebox.retry_dead('0', '{1}', 'mina', NULL), oncebox.retry_parked('0', '{1}', 'mina', NULL), oncebox.give_up_parked('0', '{1}', 'mina', NULL, 'dead')"),
    ("o", "SELECT oncebox.replay_messages('0', '{1}', 'mina', NULL, 'r'), oncebox.resend_missing('0', '{1}', 'mina', NULL, 'w')"),
    ("o", "SELECT oncebox.cancel_delayed_messages('{kd}', 'mina', NULL)"),
    ("o", "SELECT oncebox.pause_delivery('all', '>', NULL, '{>}', NULL, 'mina', NULL, NULL, 9)"),
    ("o", "SELECT oncebox.resume_delivery('all', '>', 'mina', NULL)"),
    ("o", "SELECT oncebox.prune_segment(3600, 'mina', NULL, 'w')"),
    ("r", "SELECT oncebox.resend_lost('0', 'S')"),
    ("o", "SELECT oncebox.resend_loss('0', 'S', NULL, 'mina', NULL)"),
    ("o", "SELECT oncebox.change_inbox_mode('seeded', 'lease', 'mina')"),
    ("r", "INSERT INTO oncebox.throttle (kind, value) VALUES ('all', 'x')"),
    ("o", "SELECT oncebox.enable_events('{dead}', 'mina', NULL), oncebox.disable_events('{dead}', 'mina', NULL)"),
    ("o", "SELECT oncebox.discard_letters('{1}', 'mina', NULL), oncebox.retry_letter(1, 'mina', NULL)"),
    ("o", "SELECT oncebox.undo_rows(1)"),
    ("o", "SELECT oncebox.content_digest('{}', '')"),
    ("o", "SELECT oncebox.edit_dead('0', n, '{}', '', '', 'mina', 'n'), oncebox.edit_letter(n, '{}', '', '', 'mina', 'n') FROM generate_series(1, 0) AS n"),
    ("o", "SELECT oncebox.undo_discard(n, 'mina', NULL) FROM generate_series(1, 0) AS n"),
    ("o", "SELECT audit FROM oncebox.kept"),
    ("", "SELECT payload FROM oncebox.kept"),
    ("r", "SELECT oncebox.forget_kept()"),
    ("o", "SELECT oncebox.retry_failing('s', '', 'k', '', 'mina', NULL), oncebox.forget_failing('s', '', 'k', '', 'mina', NULL)"),
    ("o", "SELECT oncebox.change_scope('seeded', '1 day', NULL, 'consumer', 'mina')"),
    ("o", "SELECT oncebox.expect('orders.*', 's', 9, NULL, true, 'mina', 'n')"),
    ("o", "SELECT oncebox.expect_no_more('orders.*', 's', 'mina', 'n')"),
    ("o", "SELECT oncebox.check_expected_inbox('s', 9, true, 'here')"),
    ("r", "SELECT oncebox.look_for_unhandled()"),
    ("r", "SELECT oncebox.expected_messages(1, '1', '2')"),
    ("r", "SELECT oncebox.arrived_keys('s', '{k}')"),
    ("r", "SELECT oncebox.note_unhandled(1, NULL, NULL, NULL, NULL)"),
    ("", "SELECT oncebox.expectations_due()"),
    ("ro", "SELECT * FROM oncebox.expectation"),
    ("o", "SELECT * FROM oncebox.unhandled"),
    ("", "SELECT * FROM oncebox.expectation_mark"),
    ("ro", "SELECT * FROM oncebox.history, oncebox.inbox_places(1)"),
    ("r", "DELETE FROM oncebox.history"),
    ("", "UPDATE oncebox.dead_letter SET reason = 'x'"),
    ("prco", "SELECT max(version) FROM oncebox.migration"),
    ("", "UPDATE oncebox.migration SET name = 'x'"),
    ("", "SELECT * FROM public.business"),
    ("", "INSERT INTO public.business VALUES (1)"),
    ("", "CREATE TABLE oncebox.mine (n int)"),
    ("", "CREATE FUNCTION oncebox.mine() RETURNS int LANGUAGE sql RETURN 1"),
    ("", "DROP FUNCTION oncebox.enqueue(text, text, bytea, jsonb, text)"),
];

#[tokio::test]
async fn each_role_may_do_its_part_and_no_more() {
    let env = TestEnv::new().await;
    let mut client = env.pg().await;
    client.batch_execute("CREATE TABLE public.business (n int)").await.unwrap();
    let seed = "SELECT oncebox.enqueue('seed', 's', 'p'); SELECT oncebox.register_scope('seeded');
                SELECT oncebox.bury('seeded', 'dead', 'p', 'no', 's')";
    client.batch_execute(seed).await.unwrap();
    for (letter, role) in
        [('p', "producer"), ('r', "relay"), ('c', "consumer"), ('o', "operator"), ('-', "nobody")]
    {
        if role == "nobody" {
            client.batch_execute("CREATE ROLE oncebox_nobody").await.unwrap();
        }
        for (allowed, statement) in RIGHTS {
            let is_free = statement.contains("pg_control_system");
            let transaction = client.transaction().await.unwrap();
            transaction.batch_execute(&format!("SET LOCAL ROLE oncebox_{role}")).await.unwrap();
            let done = transaction.batch_execute(statement).await;
            match &done {
                Ok(()) => assert!(is_free || allowed.contains(letter), "{role} may: {statement}"),
                Err(error) => {
                    assert_eq!(
                        error.code(),
                        Some(&SqlState::INSUFFICIENT_PRIVILEGE),
                        "{role}: {statement}: {error}"
                    );
                    assert!(!allowed.contains(letter), "{role} may not: {statement}");
                }
            }
            transaction.rollback().await.unwrap();
        }
    }
    client.batch_execute("DROP ROLE oncebox_nobody").await.unwrap();
}

/// C9: grants that the migrating user gives to others by default, on all that it creates.
#[tokio::test]
async fn default_privileges_of_the_owner_let_nobody_change_the_outbox() {
    let env = TestEnv::new().await;
    let mut client = client(env.database_url()).await;
    let (app, schema): (String, SchemaName) = (format!("{}_app", env.name()), env.name().parse().unwrap());
    let grant = |on: &str| format!("ALTER DEFAULT PRIVILEGES GRANT ALL ON {on} TO {app};");
    let grants = ["TABLES", "SEQUENCES", "FUNCTIONS"].map(grant).concat();
    client.batch_execute(&format!("CREATE ROLE {app}; {grants}")).await.unwrap();
    migrate(&mut client, &schema, Lanes::default()).await.unwrap();
    let left = "SELECT c.oid::regclass || ': ' || a.privilege_type
                FROM pg_class AS c CROSS JOIN LATERAL aclexplode(c.relacl) AS a
                WHERE c.relnamespace = $1::regnamespace AND a.grantee = $2::regrole AND a.privilege_type <> 'SELECT'
                UNION ALL
                SELECT p.oid::regprocedure || ': ' || a.privilege_type
                FROM pg_proc AS p CROSS JOIN LATERAL aclexplode(p.proacl) AS a
                WHERE p.pronamespace = $1::regnamespace AND a.grantee = $2::regrole";
    let left = left.replace("$1", &format!("'{schema}'")).replace("$2", &format!("'{app}'"));
    let left: Vec<String> = client.query(&left, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    // The rights of any producer or consumer.
    for kept in &left {
        let is_open =
            ["saga", "inbox", "dead_letter", "consumer_position"].iter().any(|table| kept.contains(table))
                || kept.contains(": EXECUTE");
        assert!(is_open, "{kept}");
    }
    for closed in [
        "end_turn",
        "empty_segment",
        "move_delayed",
        "resend_lost",
        "repair_ids",
        "message",
        "cursor:",
        "lane:",
    ] {
        assert!(!left.iter().any(|kept| kept.contains(&format!(".{closed}"))), "{closed}: {left:#?}");
    }
    assert!(left.iter().any(|kept| kept.contains("enqueue(")), "{left:#?}");
    client.batch_execute(&format!("DROP OWNED BY {app}; DROP ROLE {app}")).await.unwrap();
}

#[tokio::test]
async fn public_may_call_nothing_and_every_definer_function_pins_its_search_path() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let functions = client
        .query(
            "SELECT p.oid::regprocedure::text, p.prosecdef, coalesce(p.proconfig, '{}')::text[],
                    coalesce(p.proacl, acldefault('f', p.proowner))::text
             FROM pg_proc AS p WHERE p.pronamespace = 'oncebox'::regnamespace",
            &[],
        )
        .await
        .unwrap();
    assert!(functions.len() >= 14, "{}", functions.len());
    for row in functions {
        let (name, definer, config, grants): (String, bool, Vec<String>, String) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        // A grant to PUBLIC is an entry with no name before the equals sign.
        assert!(!grants.contains("{=") && !grants.contains(",="), "{name} is for everybody: {grants}");
        if definer {
            assert!(config.contains(&"search_path=pg_catalog, pg_temp".to_owned()), "{name}: {config:?}");
        }
    }
}

#[tokio::test]
async fn a_producers_search_path_and_temporary_objects_do_not_reach_into_enqueue() {
    let env = TestEnv::new().await;
    let admin = env.pg().await;
    let producer = env.pg().await;
    // Objects with names that the functions use without a schema, or with names of their tables.
    admin
        .batch_execute(
            "CREATE SCHEMA evil;
             CREATE FUNCTION evil.trap() RETURNS boolean LANGUAGE plpgsql AS
               'BEGIN RAISE EXCEPTION ''hijacked as %'', current_user; END';
             CREATE FUNCTION evil.octet_length(text) RETURNS int LANGUAGE sql AS 'SELECT evil.trap()::int';
             CREATE FUNCTION evil.octet_length(bytea) RETURNS int LANGUAGE sql AS 'SELECT evil.trap()::int';
             CREATE FUNCTION evil.current_setting(text) RETURNS text LANGUAGE sql AS 'SELECT evil.trap()::text';
             CREATE FUNCTION evil.jsonb_typeof(jsonb) RETURNS text LANGUAGE sql AS 'SELECT evil.trap()::text';
             CREATE FUNCTION evil.hashtextextended(text, bigint) RETURNS bigint LANGUAGE sql AS 'SELECT evil.trap()::int::bigint';
             CREATE FUNCTION evil.convert_to(text, name) RETURNS bytea LANGUAGE sql AS 'SELECT evil.trap()::text::bytea';
             CREATE FUNCTION evil.cardinality(anyarray) RETURNS int LANGUAGE sql AS 'SELECT evil.trap()::int';
             CREATE FUNCTION evil.pg_notify(text, text) RETURNS void LANGUAGE sql AS 'SELECT evil.trap()';
             CREATE FUNCTION evil.setval(regclass, bigint) RETURNS bigint LANGUAGE sql AS 'SELECT evil.trap()::int::bigint';
             CREATE FUNCTION evil.never(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT evil.trap()';
             CREATE OPERATOR evil.~ (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.never);
             CREATE OPERATOR evil.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.never);
             GRANT USAGE ON SCHEMA evil TO oncebox_producer;
             GRANT TEMPORARY ON DATABASE CURRENT_DATABASE TO oncebox_producer;"
                .replace("CURRENT_DATABASE", env.name())
                .as_str(),
        )
        .await
        .unwrap();
    producer
        .batch_execute("SET ROLE oncebox_producer; SET search_path = pg_temp, evil, pg_catalog")
        .await
        .unwrap();
    assert!(producer.batch_execute("SELECT octet_length('x'::text)").await.is_err(), "the trap is set");
    producer
        .batch_execute(
            "CREATE TEMPORARY TABLE message (LIKE pg_catalog.pg_class);
             CREATE TEMPORARY TABLE lane (n int); CREATE TEMPORARY TABLE relay_asleep (last_value int)",
        )
        .await
        .unwrap();
    admin.batch_execute("SELECT setval('oncebox.relay_asleep', 1)").await.unwrap();
    for statement in [
        ENQUEUE,
        ENQUEUE,
        "SELECT oncebox.enqueue_json('kj', 's', '{}', '{\"a\": \"b\"}', 'o')",
        "SELECT * FROM oncebox.enqueue_all('{ka,kb}', '{s,s}', '{p,p}')",
        "SELECT oncebox.undo_key(oncebox.part_key(oncebox.step_key(oncebox.root_key('a:b'), 'c'), 3))",
    ] {
        producer.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    }
    assert_eq!(keys(&admin).await, ["k", "kj", "ka", "kb"]);
}

async fn keys(client: &Client) -> Vec<String> {
    let rows = client.query("SELECT key FROM oncebox.message ORDER BY id", &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}
