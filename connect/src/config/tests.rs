use proptest::prelude::*;

use super::*;

fn values(pairs: &[(&'static str, &str)]) -> Values {
    let required =
        [("database-url", "postgres://me:secret@db.example/orders"), ("nats-url", "nats://n.example")];
    required.iter().chain(pairs).map(|(name, text)| (*name, (*text).to_owned())).collect()
}

/// The same as flags of the program.
fn typed(pairs: &[(&'static str, &str)]) -> Sources {
    Sources::read(values(pairs), [], |_| None)
}

fn mistakes(pairs: &[(&'static str, &str)]) -> Vec<String> {
    Config::from_values(&values(pairs)).map(drop).expect_err("a mistake").0
}

#[test]
fn defaults_are_valid() {
    let config = Config::from_values(&values(&[])).unwrap();
    assert_eq!(config.workers, 4);
    assert_eq!(config.outbox.schema.as_str(), "oncebox");
    assert_eq!(config.http_listen, None, "a relay in another program opens nothing unasked");
    let typed = Config::from_sources(&typed(&[])).unwrap();
    assert_eq!(typed.http_listen, Some(SocketAddr::from(([127, 0, 0, 1], 9464))));
}

#[test]
fn all_mistakes_are_reported_at_once_each_by_name_and_limit() {
    let found = mistakes(&[
        ("database-url", "http://x"),
        ("nats-url", "ftp://me:secret@x"),
        ("schema", "My Schema"),
        ("workers", "0"),
        ("window", "many"),
        ("on-dead", "ignore"),
        ("http-listen", "9464"),
        ("retention", "0"),
        ("saga-lifetime", "forever"),
        ("log-format", "xml"),
        ("poll-min-milliseconds", "300"),
        ("grace-seconds", "601"),
        ("stuck-seconds", "9"),
    ]);
    for (name, part) in [
        ("database-url", "PostgreSQL URL"),
        ("nats-url", "NATS URL"),
        ("schema", "a-z"),
        ("workers", "1 to 64"),
        ("window", "1 to 16384"),
        ("on-dead", "block"),
        ("http-listen", "IP:PORT"),
        ("retention", "from 1m to 3650d"),
        ("saga-lifetime", "from 1m to 3650d"),
        ("log-format", "neither \"text\" nor \"json\""),
        ("poll-min-milliseconds", "poll-max"),
        ("grace-seconds", "0 to 600"),
        ("stuck-seconds", "10 to 3600"),
    ] {
        let named = format!("option {name}: ");
        assert!(
            found.iter().any(|line| line.starts_with(&named) && line.contains(part)),
            "{name}: {found:#?}"
        );
    }
    assert_eq!(found.len(), 13, "{found:#?}");
    assert!(!found.join("\n").contains("secret"));
}

#[test]
fn a_collector_is_reached_over_plain_http() {
    let endpoint =
        |text: &str| Config::from_values(&values(&[("otlp-endpoint", text)])).unwrap().otlp_endpoint;
    assert_eq!(endpoint(""), None);
    for text in ["http://127.0.0.1:4318", "http://127.0.0.1:4318/"] {
        assert_eq!(endpoint(text).unwrap(), "http://127.0.0.1:4318/v1/traces");
    }
    assert_eq!(endpoint("http://agent/below").unwrap(), "http://agent/below/v1/traces");
    let wrong =
        ["https://agent:4318", "agent:4318", "http://", "http://me:secret@agent", "http://agent/?key=secret"];
    for text in wrong {
        let found = mistakes(&[("otlp-endpoint", text)]);
        assert!(found[0].contains("http://HOST:4318") && !found[0].contains("secret"), "{text}: {found:?}");
    }
}

#[test]
fn retention_is_a_time_or_forever() {
    let check = |text: &str, expected: Option<u64>| {
        let config = Config::from_values(&values(&[("retention", text)])).unwrap();
        assert_eq!(config.outbox().retention(), expected.map(Duration::from_secs), "{text}");
    };
    check("", Some(7 * 86_400));
    check("36h", Some(36 * 3_600));
    check("1m", Some(60));
    check("forever", None);
    for text in ["0", "59s", "3651d", "-1d", "7", "never"] {
        assert_eq!(mistakes(&[("retention", text)]).len(), 1, "{text}");
    }
}

#[test]
fn a_pause_is_never_taken_for_being_stuck() {
    let pauses = [("poll-max-milliseconds", "15000"), ("stuck-seconds", "29")];
    assert!(mistakes(&pauses)[0].contains("poll-max-milliseconds"), "{:?}", mistakes(&pauses));
    Config::from_values(&values(&[("poll-max-milliseconds", "15000"), ("stuck-seconds", "30")])).unwrap();
}

#[test]
fn what_is_required_says_so() {
    let typed = Sources::read(Values::new(), [], |_| None);
    let found = Config::from_sources(&typed).map(drop).unwrap_err().0;
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].starts_with("--database-url (DATABASE_URL)"), "{found:#?}");
    assert!(found[1].starts_with("--nats-url (NATS_URL)"), "{found:#?}");
    let found = Config::from_values(&Values::new()).map(drop).unwrap_err().0;
    assert!(found[0].starts_with("option database-url: ") && found[1].starts_with("option nats-url: "));
}

#[test]
fn unknown_environment_names_get_a_suggestion() {
    let names = ["ONCEBOX_WORKER", "ONCEBOX_SCHEMA", "HOME", "ONCEBOX_ZZZZ"].map(str::to_owned);
    let sources = Sources::read(values(&[]), names, |_| None);
    let error = Config::from_sources(&sources).map(drop).unwrap_err();
    assert_eq!(
        error.0,
        [
            "ONCEBOX_WORKER is not an option of oncebox; did you mean ONCEBOX_WORKERS?",
            "ONCEBOX_ZZZZ is not an option of oncebox"
        ]
    );
}

/// A relay inside another program gets its options as values.
#[test]
fn unknown_names_of_values_get_a_suggestion() {
    let all = mistakes(&[("retenton", "7 d"), ("workers", "2"), ("zzzz", "1"), ("config", "x.toml")]);
    assert_eq!(
        all,
        [
            "\"retenton\" is not an option of oncebox; did you mean \"retention\"?",
            "\"zzzz\" is not an option of oncebox",
            "option config: no file is read for values; give each option by itself"
        ]
    );
}

#[test]
fn secrets_are_never_shown() {
    let config = Config::from_values(&values(&[("nats-url", "nats://me:hunter2@n.example:4222")])).unwrap();
    assert_eq!(config.outbox().postgres_target(), "db.example:5432/orders");
    assert_eq!(config.nats_target(), "nats://n.example:4222");
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn several_nats_servers_have_one_login() {
    let url = "nats://me:hunter2@a.example, nats://b.example:4223,me:hunter2@c.example";
    let config = Config::from_values(&values(&[("nats-url", url)])).unwrap();
    assert_eq!(config.nats_target(), "nats://a.example,nats://b.example:4223,c.example");
    assert!(!format!("{config:?}").contains("hunter2"));
    for (url, part) in [
        ("nats://me:hunter2@a.example,nats://you:hunter2@b.example", "%2C"),
        ("nats://a.example,", "no NATS URL"),
        ("nats://me:hunter2,1@a.example", "no NATS URL"),
        ("nats://me:4711,hunter2@a.example", "%2C"),
    ] {
        let found = mistakes(&[("nats-url", url)]);
        assert!(found.len() == 1 && found[0].contains(part) && !found[0].contains("hunter2"), "{found:?}");
    }
}

#[test]
fn a_way_without_tls_to_another_host_is_said_unless_it_was_meant() {
    let weaknesses = |database: &str, nats: &[(&'static str, &str)]| {
        let database = [("database-url", database)];
        let pairs: Vec<_> = database.iter().chain(nats).copied().collect();
        let found = Config::from_values(&values(&pairs)).unwrap().weaknesses;
        assert!(!found.join("\n").contains("hidden"), "{found:?}");
        found.len()
    };
    let quiet = [("nats-url", "nats://n.example")];
    for (url, count) in [
        ("postgres://me:hidden@db.example/orders", 1),
        ("postgres://me:hidden@127.0.0.1,db.example/orders", 1),
        ("host=db.example user=me password=hidden", 1),
        ("host=localhost hostaddr=10.0.0.1 user=me", 1),
        ("postgres://me:hidden@db.example/orders?sslmode=disable", 0),
        ("postgres://me:hidden@db.example/orders?sslmode=verify-full", 0),
        ("host=db.example user=me sslmode=disable", 0),
        ("postgres://me:hidden@localhost/orders", 0),
        ("postgres://me:hidden@127.0.0.1/orders", 0),
        ("postgres://me:hidden@[::1]/orders", 0),
        ("host=/var/run/postgresql user=me", 0),
    ] {
        assert_eq!(weaknesses(url, &quiet), count, "{url}");
    }
    let database = "postgres://me:hidden@localhost/orders";
    for (pairs, count) in [
        (&[("nats-url", "nats://me:hidden@n.example")][..], 1),
        (&[("nats-url", "nats://n.example"), ("nats-token", "hidden")], 1),
        (&[("nats-url", "nats://me:hidden@127.0.0.1,nats://n.example")], 1),
        (&[("nats-url", "nats://me:hidden@n.example"), ("nats-tls", "require")], 0),
        (&[("nats-url", "tls://me:hidden@n.example")], 0),
        (&[("nats-url", "nats://me:hidden@localhost")], 0),
        (&[("nats-url", "nats://n.example")], 0),
    ] {
        assert_eq!(weaknesses(database, pairs), count, "{pairs:?}");
    }
}

#[test]
fn a_password_that_is_not_escaped_is_refused_and_shown_nowhere() {
    for password in ["p@secret", "secret/w", "se#cret", "secret?w", "p@ss:5432/secret#w"] {
        for (name, url) in [
            ("database-url", format!("postgres://me:{password}@db.example/orders")),
            ("nats-url", format!("nats://me:{password}@n.example")),
        ] {
            let found = mistakes(&[(name, &url)]);
            assert!(found.len() == 1 && found[0].contains("@ as %40"), "{url}: {found:?}");
            assert!(!found[0].contains("cret"), "{found:?}");
        }
    }
    let url = "postgres://me:p%40ss%2Fw%23@db.example/orders";
    let config = Config::from_values(&values(&[("database-url", url)])).unwrap();
    assert_eq!(config.outbox().postgres_target(), "db.example:5432/orders");
}

#[test]
fn what_would_fail_later_is_a_mistake() {
    for (name, text, part) in [
        ("nats-url", "ws://n.example", "NATS URL"),
        ("log", "blah==", "log filter"),
        ("expected-stream", "a b", "not a name"),
        ("nats-domain", "a.b", "domain"),
        ("nats-api-prefix", "js.*", "subject"),
    ] {
        let found = mistakes(&[(name, text)]);
        assert!(found.len() == 1 && found[0].contains(part), "{name}: {found:?}");
    }
    let both = mistakes(&[("nats-domain", "hub"), ("nats-api-prefix", "JS.orders.API")]);
    assert!(both[0].contains("only one"), "{both:?}");
    let api = |name, text| Config::from_values(&values(&[(name, text)])).unwrap().nats.api;
    assert_eq!(api("nats-domain", "hub"), "$JS.hub.API");
    assert_eq!(api("nats-api-prefix", "JS.orders.API"), "JS.orders.API");
    assert_eq!(api("log", "info"), "$JS.API");
}

proptest! {
    /// A file of an operator: every mistake is named, and none ends the program.
    #[test]
    fn a_file_of_any_text_is_read(
        text in r#"(nats_url|database_url|lanes|x|\[\[stream\]\]|\[\[database\]\]|name|subjects| = |"a>?"|\["b"\]|-?[0-9]{1,20}|\n|é|.){0,24}"#,
    ) {
        let file = file::parse(Path::new("/etc/oncebox.toml"), &text);
        // A lone "=" has three: no key, no value, and no option of this name.
        prop_assert!(file.mistakes.len() <= 3 * (text.len() + 1), "{:?}", file.mistakes);
    }

    #[test]
    fn an_option_of_any_text_is_read(
        option in prop::sample::select(vec!["database-url", "nats-url", "on-loss", "lanes-max", "messages-max"]),
        text in prop_oneof![any::<String>(), "(postgres|nats|tls|ws)://[a-z@:/?=&%\\[\\]0-9]{0,24}", "-?[0-9]{1,40}"],
    ) {
        let _ = Config::from_values(&values(&[(option, &text)]));
    }
}
