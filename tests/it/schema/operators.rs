//! Operators act through functions that record it; producers forge nothing; registrations change no
//! stored settings.

use oncebox_tests::TestEnv;

/// Programs act on events, so a producer must not be able to forge one.
#[tokio::test]
async fn a_producer_enqueues_no_event_of_oncebox() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    client.batch_execute("SELECT oncebox.enable_events('{dead-letter}', 'mina', NULL)").await.unwrap();
    client.batch_execute("SET ROLE oncebox_producer").await.unwrap();
    for call in [
        "enqueue('k', 'oncebox.events.dead', '')",
        "enqueue('k', 'oncebox.events.dead', '', '{\"a\": \"b\"}', 'o')",
        "enqueue_json('k', 'oncebox.events.x', '{}')",
        "enqueue_all('{k}', '{oncebox.events.dead}', '{p}')",
        "enqueue_at('k', 'oncebox.events.dead', '', now() + interval '1 h')",
        "enqueue_at('k', 'oncebox.events.dead', '', now())",
    ] {
        let error = client.batch_execute(&format!("SELECT oncebox.{call}")).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "OB003", "{call}: {error:?}");
    }
    let own = "RESET ROLE; SELECT oncebox.bury('s', 'k', 'p', 'no', 's')";
    client.batch_execute(own).await.unwrap();
    let event = "SELECT subject FROM oncebox.message WHERE subject LIKE 'oncebox.events.%'";
    let subject: String = client.query_one(event, &[]).await.unwrap().get(0);
    assert_eq!(subject, "oncebox.events.dead-letter");
}

/// An operator acts through functions that record it under the login, which no argument changes.
#[tokio::test]
async fn each_action_of_an_operator_is_in_the_audit_under_the_login() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let seed = "
        SELECT oncebox.bury('s', 'k' || n, 'p', 'no', 's') FROM generate_series(1, 2) AS n;
        SELECT oncebox.attempt_failed('s', 'f1', reason => 'r', subject => 's');
        SELECT oncebox.attempt_failed('s', 'f2', reason => 'r', subject => 's');
        SELECT oncebox.register_scope('s');
        SELECT oncebox.follow_lines('s', 9);
        SELECT oncebox.bury('s', 'k3', 'p', 'no', 's', '{\"Oncebox-Ordering-Key\": \"o\"}', '', NULL, 'S', 1, now());
        SELECT oncebox.bury('s', 'k4', 'p', 'no', 's', '{\"Idempotency-Key\": \"k4\"}');
        SELECT oncebox.enqueue_at('later', 's', 'p', now() + interval '1 h');
        SELECT oncebox.enqueue(k, 's', 'p') FROM unnest('{d1,d2}'::text[]) AS k;
        INSERT INTO oncebox.parked (lane, id, turn, key, subject, headers, payload, created_at, attempts, error, dead_at)
        SELECT m.lane, m.id, m.turn, m.key, m.subject, m.headers, m.payload, m.created_at, 1, 'no', now() FROM oncebox.message AS m WHERE m.key IN ('d1', 'd2')";
    client.batch_execute(seed).await.unwrap();
    client.batch_execute("SET ROLE oncebox_operator").await.unwrap();
    for (call, action) in [
        ("discard_letters('{1}', 'mina', 'n')", "discard"),
        ("undo_discard((SELECT max(a.id) FROM oncebox.audit AS a), 'mina', 'n')", "undo"),
        ("retry_letter(2, 'mina', 'n')", "retry"),
        ("retry_in_line(3, 'mina', 'n')", "retry"),
        (
            "edit_letter(4, '{\"Idempotency-Key\": \"k4\"}', 'q', oncebox.content_digest('{\"Idempotency-Key\": \"k4\"}', 'p'), 'mina', 'n')",
            "edit",
        ),
        ("begin_canary('letter', NULL, '{1}', 9, 'mina', 'n')", "begin-canary"),
        ("stop_canary(1, 'mina', 'n')", "stop-canary"),
        ("continue_canary(1, 'mina', 'n')", "continue-canary"),
        ("retry_failing('s', '', 'f1', '', 'mina', 'n')", "retry"),
        ("forget_failing('s', '', 'f2', '', 'mina', 'n')", "bury"),
        ("change_scope('s', '1 day', NULL, 'http', 'mina', 'n')", "change-scope"),
        ("change_inbox_mode('s', 'transaction', 'mina', 'n')", "change-scope"),
        ("cancel_delayed_messages('{later}', 'mina', 'n')", "cancel"),
        ("pause_delivery('all', '>', NULL, '{>}', NULL, 'mina', 'n', NULL, 9)", "pause"),
        ("resume_delivery('all', '>', 'mina', 'n')", "resume"),
        ("enable_events('{dead}', 'mina', 'n')", "enable-events"),
        ("disable_events('{dead}', 'mina', 'n')", "disable-events"),
        ("expect('orders.*', 's', 9, NULL, true, 'mina', 'n')", "expect"),
        ("expect_no_more('orders.*', 's', 'mina', 'n')", "expect-no-more"),
    ] {
        client.batch_execute(&format!("SELECT oncebox.{call}")).await.unwrap();
        let last =
            "SELECT concat_ws(' ', action, operator, note, database_user = session_user, count(*) OVER ())
                    FROM oncebox.audit ORDER BY id DESC LIMIT 1";
        let last: String = client.query_one(last, &[]).await.unwrap().get(0);
        assert!(last.starts_with(&format!("{action} mina n t ")), "{call}: {last}");
    }
    let on_lanes = "
        SELECT oncebox.retry_dead(p.lane, ARRAY[p.id], 'mina', 'n'), oncebox.retry_parked(p.lane, ARRAY[p.id], 'mina', 'n'), oncebox.give_up_parked(p.lane, ARRAY[p.id], 'mina', 'n', 'parked')
        FROM (SELECT o.* FROM oncebox.parked AS o ORDER BY o.id) AS p";
    let edit = "
        SELECT oncebox.edit_dead(p.lane, p.id, '{}', 'q', oncebox.content_digest(p.headers, p.payload), 'mina', 'n')
        FROM oncebox.parked AS p
        WHERE p.key = 'd1'";
    client.batch_execute(edit).await.unwrap();
    client.batch_execute(on_lanes).await.unwrap();
    let recorded = "SELECT string_agg(action, ' ' ORDER BY id) FROM oncebox.audit WHERE lane IS NOT NULL";
    let recorded: String = client.query_one(recorded, &[]).await.unwrap().get(0);
    assert_eq!(recorded, "edit retry discard retry retry discard");
}

#[tokio::test]
async fn a_registration_with_other_settings_keeps_the_stored_ones() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    client.batch_execute("SELECT oncebox.register_scope('s', '30 days')").await.unwrap();
    for other in ["'s', '1 s'", "'s'", "'s', '30 days', NULL, 'http'"] {
        client.batch_execute(&format!("SELECT oncebox.register_scope({other})")).await.unwrap();
        let stored = "SELECT concat_ws(' ', kind, retention_seconds) FROM oncebox.inbox_scope";
        let stored: String = client.query_one(stored, &[]).await.unwrap().get(0);
        assert_eq!(stored, "consumer 2592000", "{other}");
    }
    for wrong in ["kind => 'nonsense'", "kind => NULL"] {
        let wrong = client.batch_execute(&format!("SELECT oncebox.register_scope('t', {wrong})")).await;
        assert_eq!(wrong.unwrap_err().code().unwrap().code(), "OB011");
    }
    client.batch_execute("SELECT oncebox.change_scope('s', '1 day', NULL, 'http')").await.unwrap();
    let changed =
        "SELECT concat_ws(' ', kind, retention_seconds, dead_letter_seconds) FROM oncebox.inbox_scope";
    let changed: String = client.query_one(changed, &[]).await.unwrap().get(0);
    assert_eq!(changed, "http 86400 7776000");
}

/// Retention by hand, and the repair of a loss, are recorded by the functions that act: the ones
/// that relays use, which record nothing, are closed to operators.
#[tokio::test]
async fn retention_by_hand_and_the_repair_of_a_loss_are_in_the_audit() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    // Lane 1 comes from another cluster, and a message is written below its floor afterwards.
    let restored = "INSERT INTO oncebox.reset (lane) VALUES (1); UPDATE oncebox.cursor SET floor = 1000, high = 1000 WHERE lane = 1";
    client.batch_execute(restored).await.unwrap();
    let seed = "
        SELECT oncebox.enqueue('k', 's', 'p');
        INSERT INTO oncebox.message_1 (lane, key, subject, payload) VALUES (1, 'unsent', 's', 'p');
        UPDATE oncebox.segment SET is_live = false, is_empty = false, drained_at = now() - interval '1 day' WHERE number <> 0;
        INSERT INTO oncebox.message_1 (lane, key, subject, payload) SELECT 0, 'old' || n, 's', 'p' FROM generate_series(1, 3) AS n;
        SELECT setval('oncebox.turn', 16);
        SELECT oncebox.register_scope('s', '1 second');
        INSERT INTO oncebox.inbox (scope, tenant, key, fingerprint, status, created_at)
        VALUES ('s', '', 'k', sha256('x'), 'completed', now() - interval '1 h')";
    client.batch_execute(seed).await.unwrap();
    client.batch_execute("SET ROLE oncebox_operator").await.unwrap();
    for closed in [
        "empty_segment(0)",
        "find_unsent(60, 9)",
        "forget_emptied(9)",
        "sweep_inbox(0, 9, false)",
        "resend_lost('0', 'S')",
    ] {
        let refused = client.batch_execute(&format!("SELECT oncebox.{closed}")).await.unwrap_err();
        assert_eq!(refused.code().unwrap().code(), "42501", "{closed}");
    }
    for call in ["prune_inbox(0, 9, true, 'mina', 'n')", "prune_inbox(0, 9, false, 'mina', 'n')"] {
        client.batch_execute(&format!("SELECT oncebox.{call}")).await.unwrap();
    }
    while client
        .query_one("SELECT oncebox.prune_segment(60, 'mina', 'n', 'old')", &[])
        .await
        .unwrap()
        .get::<_, Option<i64>>(0)
        .is_some()
    {}
    let recorded = "SELECT string_agg(concat_ws(' ', action, operator, note, messages, reason), '; ' ORDER BY id) FROM oncebox.audit";
    let recorded: String = client.query_one(recorded, &[]).await.unwrap().get(0);
    let keys =
        "beyond the retentions of inboxes: keys 1, dead letters 0, claims 0, effects of unknown outcome 0";
    let unsent = "resend mina n 1 written below the floor of its lane after a restore";
    assert_eq!(recorded, format!("prune mina n 1 {keys}; {unsent}; prune mina n 4 old"));
    let aside = client.query_one("SELECT string_agg(key, ' ') FROM oncebox.parked", &[]).await.unwrap();
    assert_eq!(aside.get::<_, &str>(0), "unsent");
}
