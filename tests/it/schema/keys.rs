//! Keys, subjects, headers and payloads: SQL and Rust judge alike, and every refusal names the
//! field and the limit.

use oncebox_schema::{Key, KeyError, Subject};
use oncebox_tests::TestEnv;
use tokio_postgres::{Client, types::ToSql};

const VECTORS: &str = include_str!("../../../schema/vectors/keys.tsv");

#[tokio::test]
async fn sql_and_rust_judge_the_vectors_alike() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let mut judged = 0;
    for line in VECTORS.lines().filter(|line| !line.starts_with('#')) {
        let (verdict, key) = line.split_once('\t').unwrap();
        let key = expand(key);
        let sql = call(&client, "SELECT ($1::text, oncebox.check_key($1))::text", &[&key]).await;
        assert_eq!(sql.is_ok(), verdict == "ok", "SQL: {line}: {sql:?}");
        assert_eq!(key.parse::<Key>().is_ok(), verdict == "ok", "Rust: {line}");
        judged += 1;
    }
    assert!(judged > 50, "{judged}");
}

/// `{x*127}` in a vector stands for 127 times `x`.
fn expand(text: &str) -> String {
    let Some((head, rest)) = text.split_once('{') else { return text.to_owned() };
    let (repeat, tail) = rest.split_once('}').unwrap();
    let (unit, count) = repeat.rsplit_once('*').unwrap();
    format!("{head}{}{}", unit.repeat(count.parse().unwrap()), expand(tail))
}

/// `enqueue` asks `is_plain` first, and checks nothing more if that says yes.
#[tokio::test]
async fn no_message_that_breaks_a_limit_counts_as_plain() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let mut random = Random(u64::from(std::process::id()));
    let seed = random.0;
    let vectors: Vec<String> =
        VECTORS.lines().filter_map(|line| Some(expand(line.split_once('\t')?.1))).collect();
    let (mut plain, mut refused) = (0, 0);
    let keys = ["a", "7", ":", "#", "%3A", "undo", ":undo", " ", "ä", "\n", "Z", "%"];
    let subjects = ["a", "b.", "_", "-", ".", "$", "*", ">", "_INBOX.", " ", "ä", "\n"];
    let ordering_keys = ["a", "~", "!", ":", " ", "ä", "\n"];
    let some_headers = ["[]", r#"{"Nats-Msg-Id": "x"}"#, r#"{"a": "b"}"#, "7"];
    for number in 0..600 {
        // One field at a time is not harmless.
        let [mut key, mut subject, mut ordering_key] = ["k:step", "a.b", "o"].map(str::to_owned);
        let (mut headers, mut payload) = ("{}", Vec::new());
        match (vectors.get(number), random.below(8)) {
            (Some(vector), _) => key.clone_from(vector),
            (_, 0) => headers = some_headers[usize::try_from(random.below(4)).unwrap()],
            (_, 1) if number < 200 => {
                payload = vec![0_u8; 8_388_608 + usize::try_from(random.below(2)).unwrap()]
            }
            (_, 1 | 2) => ordering_key = random.text(&ordering_keys, 4, 255),
            (_, 3..=5) => subject = random.text(&subjects, 5, 255),
            _ => key = random.text(&keys, 6, 126),
        }
        let message: [&(dyn ToSql + Sync); 5] = [&key, &subject, &ordering_key, &headers, &payload];
        let ask = "SELECT oncebox.is_plain($1, $2, $3, $4::text::jsonb, $5)";
        let is_plain: bool = client.query_one(ask, &message).await.unwrap().get(0);
        let check = "SELECT oncebox.check_message($1, $2, $3, $4::text::jsonb, $5)";
        let checked = client.execute(check, &message).await;
        assert!(!is_plain || checked.is_ok(), "seed {seed}: {key:?} {subject:?} {ordering_key:?} {headers}");
        plain += usize::from(is_plain);
        refused += usize::from(checked.is_err());
    }
    assert!(plain > 20 && refused > 100, "seed {seed}: {plain} plain, {refused} refused: not worth much");
}

#[tokio::test]
async fn sql_and_rust_derive_the_same_keys() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let mut random = Random(u64::from(std::process::id()));
    let seed = random.0;
    let (mut derived, mut refused) = (0, 0);
    for _ in 0..300 {
        let root = random.text(&["a", "Z", "0", ":", "%", "%3A", "#", "~", "!", " ", "ä", "\n"], 6, 126);
        let mut rust = Key::root(&root);
        let mut sql = call(&client, "SELECT oncebox.root_key($1)", &[&root]).await;
        let mut path = format!("root {root:?}");
        for _ in 0..random.below(5) {
            same(&rust, &sql, &path, seed);
            let Ok(key) = &rust else { break };
            let text = key.as_str().to_owned();
            let next = match random.below(4) {
                0 => {
                    let part = if random.below(2) == 0 { random.below(20) } else { u64::from(u32::MAX) };
                    path += &format!(", part {part}");
                    sql =
                        call(&client, "SELECT oncebox.part_key($1, $2)", &[&text, &part.cast_signed()]).await;
                    key.part(u32::try_from(part).unwrap())
                }
                1 => {
                    path += ", undo";
                    sql = call(&client, "SELECT oncebox.undo_key($1)", &[&text]).await;
                    key.undo()
                }
                _ => {
                    let step = random.text(&["a", "z", "0", ".", "_", "-", "undo", "A", ":", "\n"], 4, 64);
                    path += &format!(", step {step:?}");
                    sql = call(&client, "SELECT oncebox.step_key($1, $2)", &[&text, &step]).await;
                    key.step(&step)
                }
            };
            rust = next;
        }
        same(&rust, &sql, &path, seed);
        *(if rust.is_ok() { &mut derived } else { &mut refused }) += 1;
    }
    assert!(
        derived > 30 && refused > 30,
        "seed {seed}: {derived} derived, {refused} refused: not worth much"
    );
}

fn same(rust: &Result<Key, KeyError>, sql: &Result<String, Refusal>, path: &str, seed: u64) {
    match (rust, sql) {
        (Ok(rust), Ok(sql)) => assert_eq!(rust.as_str(), sql, "seed {seed}: {path}"),
        (Err(_), Err(refusal)) => assert_eq!(refusal.code, "OB002", "seed {seed}: {path}: {refusal:?}"),
        _ => panic!("seed {seed}: {path}: Rust says {rust:?}, SQL says {sql:?}"),
    }
}

#[tokio::test]
async fn sql_and_rust_judge_subjects_alike() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let (longest, too_long) = ("s".repeat(255), "s".repeat(256));
    let good =
        ["a", "orders.placed", "A-b_c.0", "a$b", "a.$b", "%3A.~", "_INBOX", "_INBOXES.a", "a/b:c", &longest];
    let bad = [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "a b",
        "a\tb",
        "a\r\nb",
        "*",
        "a.*",
        "a.>",
        "a*b",
        "ä",
        "$JS.API.x",
        "$SYS",
        "_INBOX.a",
        "a\u{7f}",
        "\"a",
        &too_long,
    ];
    for (subject, expected) in good.iter().map(|s| (s, true)).chain(bad.iter().map(|s| (s, false))) {
        let sql = call(&client, "SELECT oncebox.check_subject($1)::text", &[subject]).await;
        assert_eq!(sql.is_ok(), expected, "SQL: {subject:?}: {sql:?}");
        assert_eq!(subject.parse::<Subject>().is_ok(), expected, "Rust: {subject:?}");
    }
}

/// Each byte as the first and as a later one of each token; one statement asks about them all.
#[tokio::test]
async fn sql_and_rust_judge_every_byte_of_a_subject_alike() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    let bytes = (1..=127_u8).map(char::from).chain(['\u{80}', 'ß', '\u{2028}', '😀']);
    let subjects: Vec<String> = bytes
        .flat_map(|c| {
            [
                format!("{c}"),
                format!("{c}x"),
                format!("x{c}y"),
                format!("x{c}"),
                format!("x.{c}"),
                format!("x.{c}y.z"),
            ]
        })
        .collect();
    let judge = "CREATE FUNCTION pg_temp.judge(subject text) RETURNS boolean LANGUAGE plpgsql AS
        'BEGIN RETURN oncebox.check_subject(subject); EXCEPTION WHEN SQLSTATE ''OB003'' THEN RETURN false; END'";
    client.batch_execute(judge).await.unwrap();
    let sql = "SELECT s, pg_temp.judge(s) FROM unnest($1::text[]) AS s";
    let mut good = 0;
    for row in client.query(sql, &[&subjects]).await.unwrap() {
        let (subject, in_sql): (&str, bool) = (row.get(0), row.get(1));
        assert_eq!(subject.parse::<Subject>().is_ok(), in_sql, "{subject:?}: Rust and SQL");
        good += usize::from(in_sql);
    }
    assert!((400..600).contains(&good), "{good} of {}", subjects.len());
}

/// A refusal: SQLSTATE, words that the message must have (the field, the limit), and the arguments
/// of enqueue.
const REFUSED: &[(&str, &[&str], &str)] = &[
    ("OB002", &["key", "null"], "NULL, 's', 'p'"),
    ("OB002", &["key", "0 bytes", "1 to 255 bytes"], "'', 's', 'p'"),
    (
        "OB002",
        &["key", "256 bytes", "1 to 255 bytes"],
        "repeat('k', 128) || ':' || repeat('s', 127), 's', 'p'",
    ),
    ("OB002", &["key", "129 bytes", "128 bytes"], "repeat('k', 129), 's', 'p'"),
    ("OB002", &["step", "64 bytes"], "'k:' || repeat('s', 65), 's', 'p'"),
    ("OB002", &["key", "visible ASCII"], "'a b', 's', 'p'"),
    ("OB002", &["key", "undoes an undo"], "'a:undo:undo', 's', 'p'"),
    ("OB002", &["part", "4294967295"], "'a:#4294967296', 's', 'p'"),
    ("OB003", &["subject", "null"], "'k', NULL, 'p'"),
    ("OB003", &["subject", "255 bytes"], "'k', repeat('s', 256), 'p'"),
    ("OB003", &["subject", "*"], "'k', 'orders.*', 'p'"),
    ("OB005", &["payload", "null"], "'k', 's', NULL"),
    (
        "OB005",
        &["payload", "67108865 bytes", "67108864 bytes"],
        "'k', 's', convert_to(repeat('p', 67108865), 'UTF8')",
    ),
    ("OB004", &["headers", "array"], "'k', 's', 'p', '[]'"),
    ("OB004", &["headers", "16384 bytes"], "'k', 's', 'p', jsonb_build_object('a', repeat('v', 16384))"),
    ("OB004", &["header name", "128"], "'k', 's', 'p', jsonb_build_object(repeat('h', 129), 'v')"),
    ("OB004", &["header name", "a b"], "'k', 's', 'p', '{\"a b\": \"v\"}'"),
    ("OB004", &["header", "\"a\"", "string"], "'k', 's', 'p', '{\"a\": 1}'"),
    ("OB004", &["header", "\"a\"", "control"], r#"'k', 's', 'p', '{"a": "x\ny"}'"#),
    ("OB004", &["header", "\"a\"", "blank"], r#"'k', 's', 'p', '{"a": " x"}'"#),
    ("OB004", &["header", "\"a\"", "blank"], r#"'k', 's', 'p', '{"a": "x\t"}'"#),
    ("OB004", &["header", "Nats-Msg-Id"], "'k', 's', 'p', '{\"Nats-Msg-Id\": \"x\"}'"),
    ("OB004", &["header", "nats-rollup"], "'k', 's', 'p', '{\"nats-rollup\": \"all\"}'"),
    ("OB004", &["header", "ONCEBOX-ID"], "'k', 's', 'p', '{\"ONCEBOX-ID\": \"1\"}'"),
    ("OB004", &["header", "oncebox-reply-to"], "'k', 's', 'p', '{\"oncebox-reply-to\": \"s\"}'"),
    ("OB003", &["subject", "a.*"], "'k', 's', 'p', '{\"Oncebox-Reply-To\": \"a.*\"}'"),
    ("OB004", &["header", "X-Idempotency-Key"], "'k', 's', 'p', '{\"X-Idempotency-Key\": \"1\"}'"),
    ("OB006", &["ordering key", "255 bytes"], "'k', 's', 'p', '{}', repeat('o', 256)"),
    ("OB006", &["ordering key", "255 bytes"], "'k', 's', 'p', '{}', ''"),
    ("OB006", &["ordering key", "visible ASCII"], "'k', 's', 'p', '{}', 'a b'"),
];

#[tokio::test]
async fn every_refusal_names_the_field_and_the_limit_and_changes_nothing() {
    let env = TestEnv::new().await;
    let client = env.pg().await;
    for (code, words, arguments) in REFUSED {
        let done = call(&client, &format!("SELECT oncebox.enqueue({arguments})::text"), &[]).await;
        let refusal = done.expect_err(arguments);
        assert_eq!(refusal.code, *code, "{arguments}: {refusal:?}");
        for word in *words {
            assert!(refusal.message.contains(word), "{arguments}: {word:?} is not in {:?}", refusal.message);
        }
        assert!(
            !refusal.everything.contains("Failing row"),
            "a row, with its payload, in {}",
            refusal.everything
        );
    }
    let bulk = "SELECT * FROM oncebox.enqueue_all";
    for (code, word, arguments) in [
        ("OB002", "key is null", "'{a,NULL}', '{s,s}', '{p,p}'"),
        ("OB003", "subject is null", "'{a,b}', '{NULL,s}', '{p,p}'"),
        ("OB005", "payload is null", "'{a,b}', '{s,s}', '{p,NULL}'"),
        ("OB007", "2 keys, 1 subjects", "'{a,b}', '{s}', '{p,p}'"),
        ("OB007", "1 headers", "'{a,b}', '{s,s}', '{p,p}', ARRAY['{}'::jsonb]"),
        (
            "OB007",
            "10000",
            "array_fill('k'::text, '{10001}'), array_fill('s'::text, '{10001}'), array_fill('p'::bytea, '{10001}')",
        ),
        ("OB003", "subject", "'{a,b}', '{s,*}', '{p,p}'"),
        ("OB001", "another payload", "'{a,a}', '{s,s}', '{p,q}'"),
    ] {
        let refusal = call(&client, &format!("{bulk}({arguments})"), &[]).await.expect_err(arguments);
        assert_eq!(refusal.code, code, "{arguments}: {refusal:?}");
        assert!(refusal.message.contains(word), "{arguments}: {refusal:?}");
        assert!(!refusal.everything.contains("Failing row"), "{}", refusal.everything);
    }
    let count: i64 = client.query_one("SELECT count(*) FROM oncebox.message", &[]).await.unwrap().get(0);
    assert_eq!(count, 0);
    let largest = "SELECT oncebox.enqueue('k', 's', convert_to(repeat('p', 67108864), 'UTF8'))::text";
    call(&client, largest, &[]).await.expect("the limit itself is allowed");
    let limits = "SELECT oncebox.enqueue(repeat('k', 128) || ':' || repeat('s', 64) || ':' || repeat('t', 61), \
                  repeat('s', 255), '', jsonb_build_object(repeat('h', 128), 'a\tb'), repeat('o', 255))::text";
    call(&client, limits, &[]).await.expect("so are the others, and an empty payload");
}

/// The server's message.
#[derive(Debug)]
struct Refusal {
    code: String,
    message: String,
    everything: String,
}

/// Runs one statement that returns one text.
async fn call(client: &Client, sql: &str, arguments: &[&(dyn ToSql + Sync)]) -> Result<String, Refusal> {
    match client.query_one(sql, arguments).await {
        Ok(row) => Ok(row.try_get(0).unwrap_or_default()),
        Err(error) => {
            let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error:?}"));
            Err(Refusal {
                code: error.code().code().to_owned(),
                message: error.message().to_owned(),
                everything: format!("{error:?}"),
            })
        }
    }
}

/// Enough randomness for a test, the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// Up to `count` pieces, one time in eight with one of them repeated to about `long` bytes.
    fn text(&mut self, pieces: &[&str], count: u64, long: usize) -> String {
        let length = pieces.len() as u64;
        let mut text = String::new();
        // Mostly the harmless first half, so that most texts are legal.
        for _ in 0..self.below(count + 1) {
            let limit = if self.below(4) == 0 { length } else { length.div_ceil(3) };
            text += pieces[usize::try_from(self.below(limit)).unwrap()];
        }
        if self.below(8) == 0 {
            let wanted = long - 2 + usize::try_from(self.below(6)).unwrap();
            text = "a".repeat(wanted.saturating_sub(text.len())) + &text;
        }
        text
    }
}
