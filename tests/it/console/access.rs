//! Who gets in, under which name, and from which page.

use oncebox_tests::{TestEnv, oncebox};
use tokio::net::TcpStream;

use super::support::{Answer, Console, OPERATOR, READER};

fn basic(name: &str, secret: &str) -> String {
    format!("Basic {}", data_encoding::BASE64.encode(format!("{name}:{secret}").as_bytes()))
}

async fn sign_in(console: &Console, secret: &str) -> Answer {
    let body = format!("secret={secret}&next=%2Fsettings");
    console.ask("POST", "/sign-in", &[("origin", "http://localhost")], &body).await
}

fn cookie(answer: &Answer) -> &str {
    answer.header("set-cookie").unwrap().split(';').next().unwrap()
}

#[tokio::test]
async fn every_answer_forbids_what_is_foreign() {
    let env = TestEnv::new().await;
    let console = Console::of(&env, &[]).await;
    for path in ["/", "/db/shop", "/find?q=a", "/none", "/api/v1/databases", "/settings", "/sign-in"] {
        let answer = console.get(path).await;
        let policy = answer.header("content-security-policy").unwrap();
        for part in ["default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"]
        {
            assert!(policy.contains(part) && !policy.contains("unsafe"), "{path}: {policy}");
        }
        assert_eq!(answer.header("x-frame-options"), Some("DENY"), "{path}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{path}");
        // The policy would block them, and the page be broken.
        for inline in ["style=", "onclick", "onload", "<style", "javascript:", "<script>"] {
            assert!(!answer.body.contains(inline), "{path}: {inline}");
        }
    }
    let page = console.get("/").await.body;
    let (_, rest) = page.split_once("src=\"/assets/").unwrap();
    let script = console.get(&format!("/assets/{}", rest.split('"').next().unwrap())).await;
    assert_eq!((script.status, script.header("content-type")), (200, Some("text/javascript; charset=utf-8")));
    assert!(script.header("cache-control").unwrap().contains("immutable"));
    assert_eq!(console.get("/assets/0123456789abcdef/console.js").await.status, 404);
}

#[tokio::test]
async fn requests_of_other_sites_are_refused() {
    let env = TestEnv::new().await;
    let console = Console::of(&env, &["--host", "console.example"]).await;
    for (host, status) in [("console.example", 200), ("127.0.0.1:1", 200), ("evil.example", 421), ("", 421)] {
        assert_eq!(console.ask("GET", "/", &[("host", host)], "").await.status, status, "{host}");
    }
    for (origin, status) in [("http://localhost", 303), ("http://evil.example", 403), ("null", 403)] {
        let answer = console.ask("POST", "/sign-out", &[("origin", origin)], "").await;
        assert_eq!(answer.status, status, "{origin}");
    }
    let cross = [("sec-fetch-site", "cross-site")];
    assert_eq!(console.ask("POST", "/sign-out", &cross, "").await.status, 403);
    let body = "x".repeat(17_000);
    assert_eq!(console.ask("POST", "/sign-in", &[], &body).await.status, 400, "a body without end");
}

#[tokio::test]
async fn people_sign_in_with_their_token() {
    let env = TestEnv::new().await;
    let console = Console::of(&env, &["--token-file", "{tokens}", "--allow-actions"]).await;
    let stranger = console.get("/db/shop?a=b").await;
    assert_eq!(
        (stranger.status, stranger.header("location")),
        (303, Some("/sign-in?next=%2Fdb%2Fshop%3Fa%3Db"))
    );
    let program = console.get("/api/v1/databases").await;
    assert!(program.status == 401 && program.header("www-authenticate").unwrap().starts_with("Basic"));
    assert_eq!(console.get("/events").await.status, 401);
    assert_eq!(console.get("/sign-in").await.status, 200);
    for wrong in ["", "operator", "operator-012345678", &format!("{OPERATOR}0")] {
        let answer = sign_in(&console, wrong).await;
        assert!(answer.status == 401 && answer.header("set-cookie").is_none(), "{wrong}");
    }
    let answer = sign_in(&console, OPERATOR).await;
    assert_eq!((answer.status, answer.header("location")), (303, Some("/settings")));
    let set = answer.header("set-cookie").unwrap();
    assert!(set.contains("HttpOnly") && set.contains("SameSite=Lax"), "{set}");
    assert!(!set.contains("Secure"), "it came over HTTP: {set}");
    let origin = [("origin", "https://localhost")];
    let behind_tls = console.ask("POST", "/sign-in", &origin, &format!("secret={OPERATOR}")).await;
    assert!(behind_tls.header("set-cookie").unwrap().contains("; Secure"), "{}", behind_tls.head);
    let session = [("cookie", cookie(&answer))];
    let page = console.ask("GET", "/settings", &session, "").await;
    assert!(page.status == 200 && page.body.contains("mina, operator"), "{}", page.body);
    assert_eq!(console.ask("POST", "/sign-out", &session, "").await.status, 303);
    assert_eq!(console.ask("GET", "/settings", &session, "").await.status, 303, "the session has ended");
    for (name, secret, status) in [("rob", READER, 200), ("mina", READER, 401), ("rob", "no", 401)] {
        let header = [("authorization", &*basic(name, secret))];
        let answer = console.ask("GET", "/api/v1/settings", &header, "").await;
        assert_eq!(answer.status, status, "{name}");
        assert!(status != 200 || answer.body.contains(r#""user":"rob","role":"reader""#), "{}", answer.body);
    }
    // A form whose session has ended leads to the sign-in, and no browser opens a box of its own.
    let ended = console.ask("POST", "/db/shop/act", &session, "kind=dead").await;
    assert_eq!((ended.status, ended.header("location")), (303, Some("/sign-in?next=%2F")));
    let browser = [("sec-fetch-mode", "cors"), ("sec-fetch-site", "same-origin")];
    let asked = console.ask("GET", "/events", &browser, "").await;
    assert!(asked.status == 401 && asked.header("www-authenticate").is_none(), "{}", asked.head);
    // Cookies go to all ports of a host.
    assert!(set.starts_with(&format!("oncebox_session_{}=", console.address.port())), "{set}");
    let log = console.stop().await;
    assert!(!log.contains(OPERATOR) && log.contains("signed in"), "{log}");
    assert!(
        log.contains("does not know count=4") && log.contains("every account of this machine can read"),
        "{log}"
    );
}

#[tokio::test]
async fn a_proxy_is_believed_only_if_it_is_trusted() {
    let env = TestEnv::new().await;
    let trusting = |proxy: &'static str| {
        [
            "--trusted-header",
            "X-Forwarded-User",
            "--trusted-proxy",
            proxy,
            "--operator",
            "mina",
            "--allow-actions",
        ]
    };
    let console = Console::of(&env, &trusting("127.0.0.1")).await;
    for (name, role) in [("mina", "operator"), ("rob", "reader")] {
        let answer = console.ask("GET", "/api/v1/settings", &[("x-forwarded-user", name)], "").await;
        let expected = format!(r#""user":"{name}","role":"{role}""#);
        assert!(answer.body.contains(&expected), "{}", answer.body);
    }
    assert_eq!(console.get("/").await.status, 401, "nobody is named");
    let twice = [("x-forwarded-user", "mina"), ("x-forwarded-user", "rob")];
    assert_eq!(console.ask("GET", "/", &twice, "").await.status, 401, "nobody knows who");
    let named = [("x-forwarded-user", "rob")];
    let missing = console.ask("GET", "/api/v1/nope", &named, "").await;
    assert!(missing.status == 404 && missing.body.starts_with(r#"{"error":"#), "{}", missing.body);
    let console = Console::of(&env, &trusting("10.1.2.3")).await;
    let answer = console.ask("GET", "/", &[("x-forwarded-user", "mina")], "").await;
    assert_eq!(answer.status, 401, "another address");
}

#[tokio::test]
async fn what_is_not_safe_is_refused_before_it_serves() {
    let env = TestEnv::new().await;
    let run = async |arguments: &[&str]| {
        let environment = [("DATABASE_URL", env.database_url())];
        oncebox(&[&["console"], arguments].concat(), &environment).await.unwrap()
    };
    let (code, _, log) = run(&["--listen", "0.0.0.0:0"]).await;
    assert!(code == 64 && log.contains("nobody signs in: give --token-file"), "{log}");
    for host in ["console.example:443", "*.example", "https://console.example"] {
        let (code, _, log) = run(&["--host", host]).await;
        assert!(code == 64 && log.contains("is not a bare name"), "{host}: {log}");
    }
    let (code, _, log) = run(&["--trusted-header", "X-User"]).await;
    assert!(code == 64 && log.contains("--trusted-proxy"), "{log}");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "mina:boss:hunter2hunter2hunter2\nrob:reader:short").unwrap();
    let (code, _, log) = run(&["--token-file", file.path().to_str().unwrap()]).await;
    assert!(code == 64 && log.contains("line 1: the role") && log.contains("line 2: the token"), "{log}");
    assert!(!log.contains("hunter2"), "{log}");
}

/// Connections that are left open keep no other client out.
#[tokio::test]
async fn idle_connections_are_closed() {
    let env = TestEnv::new().await;
    let console = Console::of(&env, &[]).await;
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(TcpStream::connect(console.address).await.unwrap());
    }
    assert_eq!(console.get("/").await.status, 200, "they give way after some seconds");
}
