//! The probes and metrics of `oncebox saga run`: ready, not ready without a server, and alive all
//! the while.

use oncebox_tests::{Nats, Program, TestEnv, eventually, oncebox};

use super::{lead::Written, site::LIMIT};
use crate::relay::{
    process::get,
    support::{fresh_stream, stream_config, through_proxy},
};

const ORDER: &str = include_str!("../../../saga/src/file/order.toml");

#[tokio::test]
async fn a_leader_says_whether_it_is_ready_and_what_it_did() {
    let (env, mut nats) = (TestEnv::new().await, Nats::start().await.unwrap());
    fresh_stream(&nats.url(), stream_config("SAGAS", "sagas.>")).await;
    let (proxy, url) = through_proxy(env.database_url()).await;
    let file = Written::new("health.toml", ORDER);
    let environment = [("DATABASE_URL", url), ("NATS_URL", nats.url())];
    let run = ["saga", "run", "--http-listen", "127.0.0.1:0", file.path()];
    let mut leader = Program::start("oncebox", &run, &environment).await.unwrap();
    let address = eventually("it serves", LIMIT, async || leader.http_address()).await;
    let becomes = async |path: &str, status: u16, said: &str| {
        let answer = async || {
            let (found, text) = get(address, path).await;
            (found == status && text.contains(said)).then_some(())
        };
        eventually(&format!("{path} is {status}, {said}"), LIMIT, answer).await;
    };
    becomes("/readyz", 200, "ok").await;
    let names = "SELECT DISTINCT application_name FROM pg_stat_activity
                 WHERE datname = current_database() AND application_name LIKE 'oncebox %'";
    let names = env.pg().await.query(names, &[]).await.unwrap();
    let names: Vec<&str> = names.iter().map(|row| row.get(0)).collect();
    assert_eq!(names, ["oncebox saga"], "`status` and `why` count those of relays");
    for (gone, said) in [(true, "NATS is not connected"), (false, "ok")] {
        if gone {
            nats.kill().await
        } else {
            nats.resume().await.unwrap()
        }
        becomes("/readyz", if gone { 503 } else { 200 }, said).await;
        assert_eq!(get(address, "/livez").await.0, 200, "a restart would not help");
    }
    for (gone, said) in [(true, "PostgreSQL last answered"), (false, "ok")] {
        proxy.stall(gone);
        becomes("/readyz", if gone { 503 } else { 200 }, said).await;
        assert_eq!(get(address, "/livez").await.0, 200, "a restart would not help");
    }
    let (_, text) = get(address, "/metrics").await;
    for line in [
        "# TYPE oncebox_leader_answers counter",
        "oncebox_leader_answers_total{result=\"refused\"} 0",
        "oncebox_leader_sagas_total{state=\"stuck\"} 0",
        "oncebox_leader_ready 1",
        "# EOF",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
    // Another cannot have the same address, and says so.
    let taken = address.to_string();
    let second = ["saga", "run", "--http-listen", &taken, file.path()];
    let (code, _, log) = oncebox(&second, &environment).await.unwrap();
    assert!(code == 1 && log.contains("choose another --http-listen"), "{log}");
    leader.stop().await.unwrap();
}
