//! Times and spans without an end: each function that takes one answers rightly, or says in words
//! of Oncebox that it cannot.

use oncebox_tests::TestEnv;
use tokio_postgres::Client;

/// The SQLSTATE, or `ok`. `@` stands for the time, which is of the type that the call asks for.
async fn answer(client: &Client, call: &str, time: &str) -> String {
    let sql = format!("BEGIN; SELECT oncebox.{}; ROLLBACK", call.replace('@', &format!("'{time}'")));
    let Err(error) = client.batch_execute(&sql).await else { return "ok".to_owned() };
    client.batch_execute("ROLLBACK").await.unwrap();
    let error = error.as_db_error().unwrap();
    // An interval is finite before PostgreSQL 17, which says so by itself.
    let is_no_interval = error.code().code() == "22007" && error.message().contains("interval");
    if is_no_interval {
        "no interval".to_owned()
    } else {
        format!("{} {}", error.code().code(), error.message())
    }
}

const NUMBERS: [&str; 3] = ["Infinity", "-Infinity", "NaN"];
const TIMES: [&str; 4] = ["infinity", "-infinity", "294276-01-01 00:00+00", "4713-01-01 00:00+00 BC"];
const SPANS: [&str; 4] = ["infinity", "-infinity", "170000000 years", "-170000000 years"];

#[tokio::test]
async fn a_function_answers_for_a_time_without_an_end_or_names_the_fault() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let before = "SELECT oncebox.register_scope('there'); SELECT oncebox.attempt_failed('there', 'k', reason => 'r', subject => 's')";
    client.batch_execute(before).await.unwrap();
    let at = "stream => 'S', stream_sequence => 1, stored_at => @";
    let pause = "pause_delivery('subject', 'a', NULL, '{a}', NULL, 'mina', NULL,";
    let failing = "bury_failing('there', '', 'k', 'p', 's', '{}', 'S', 1, @, 1, 'no', 'mina', NULL)";
    let calls: [(&[&str], String, &str); 25] = [
        (&TIMES, "enqueue_at('k', 's', 'p', @)".to_owned(), ""),
        (&TIMES, "enqueue_json_at('k', 's', '{}', @)".to_owned(), ""),
        (&TIMES, format!("attempt_failed('s', 'k', {at})"), "OB011"),
        (&TIMES, format!("bury('s', 'k', 'p', 'no', 's', {at})"), "OB011"),
        (&TIMES, format!("begin_attempt('s', 'k', {at})"), "OB011"),
        (&TIMES, format!("pause_left('s', 'k', {at})"), "OB011"),
        (&TIMES, format!("cancel_attempt('s', 'k', {at})"), "OB011"),
        (&TIMES, format!("snooze('s', 'k', '1 s', 'later', {at})"), "OB011"),
        (&TIMES, failing.to_owned(), "OB011"),
        (&TIMES, format!("{pause} @, NULL)"), ""),
        (&TIMES, "count_lost('0', 'S', @)".to_owned(), "ok"),
        (&TIMES, "resend_loss('0', 'S', @, 'mina', NULL)".to_owned(), "ok"),
        (&SPANS, "register_scope('s', @)".to_owned(), "OB011"),
        (&SPANS, "register_scope('s', '1 day', @)".to_owned(), "OB011"),
        (&SPANS, "change_scope('there', @, NULL, NULL, 'mina')".to_owned(), "OB011"),
        (&SPANS, "change_scope('there', '1 day', @, NULL, 'mina')".to_owned(), "OB011"),
        (&SPANS, "sweep_barrier('b', @, 10)".to_owned(), "ok"),
        (&SPANS, "sweep_sagas(@, 10)".to_owned(), "ok"),
        (&NUMBERS, format!("{pause} NULL, @)"), "OB011"),
        (
            &NUMBERS,
            "pause_delivery('subject', 'a', @, '{a}', NULL, 'mina', NULL, NULL, 9)".to_owned(),
            "OB011",
        ),
        (&NUMBERS, "attempt_failed('s', 'k', pause => @, pause_max => 60)".to_owned(), ""),
        (&NUMBERS, "prune_segment(@, 'mina', NULL, 'w')".to_owned(), "ok"),
        (&NUMBERS, "old_segments(@)".to_owned(), "ok"),
        (&NUMBERS, "end_turn(@, 50, 0)".to_owned(), "ok"),
        (&NUMBERS, "end_turn(3600, 50, @)".to_owned(), "ok"),
    ];
    let mut wrong = Vec::new();
    for (times, call, expected) in &calls {
        for time in *times {
            let found = answer(&client, call, time).await;
            // Where the answer depends on the time, it is Oncebox that says so.
            let is_ours = found == "ok" || found.starts_with("OB") || found == "no interval";
            if !is_ours || found != "no interval" && !found.starts_with(expected) {
                wrong.push(format!("{call} with {time}: {found}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// For ever is a pause's own word for no end.
#[tokio::test]
async fn a_pause_until_infinity_has_no_end_and_one_until_minus_infinity_is_none() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let pause = async |until: &str| {
        let sql = format!(
            "SELECT pause_ends_at::text FROM oncebox.pause_delivery('subject', 'a', NULL, '{{a}}', NULL, 'mina', NULL, '{until}', NULL)"
        );
        client.query_opt(&sql, &[]).await.unwrap().map(|row| row.get::<_, Option<String>>(0))
    };
    assert_eq!(pause("infinity").await, Some(None));
    assert_eq!(pause("-infinity").await, None);
    let left: i64 = client.query_one("SELECT count(*) FROM oncebox.pause", &[]).await.unwrap().get(0);
    assert_eq!(left, 0, "it replaced the one before");
}
