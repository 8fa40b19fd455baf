//! The fault-injecting proxy keeps its word.

use std::{net::SocketAddr, time::Duration};

use oncebox_tests::{Proxy, TestEnv, eventually};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_postgres::{Client, Config, NoTls};

async fn through_proxy(env: &TestEnv) -> (Proxy, Config) {
    let mut config: Config = env.database_url().parse().unwrap();
    let target = SocketAddr::from(([127, 0, 0, 1], config.get_ports()[0]));
    let proxy = Proxy::start(target).await;
    let name = config.get_dbname().unwrap().to_owned();
    config = Config::new();
    config.host("127.0.0.1").port(proxy.port()).user("postgres").dbname(&name);
    (proxy, config)
}

async fn connect(config: &Config) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = config.connect(NoTls).await?;
    tokio::task::spawn_local(connection);
    Ok(client)
}

async fn count(env: &TestEnv) -> i64 {
    env.pg().await.query_one("SELECT count(*) FROM t", &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_has_happened_and_one_that_is_cut_before_has_not() {
    tokio::task::LocalSet::new()
        .run_until(async {
            let env = TestEnv::new().await;
            env.pg().await.batch_execute("CREATE TABLE t (n int)").await.unwrap();
            let (proxy, config) = through_proxy(&env).await;
            for (forward, expected) in [(true, 1), (false, 1)] {
                let mut client = connect(&config).await.unwrap();
                proxy.cut_when_client_sends(b"COMMIT", forward);
                let transaction = client.transaction().await.unwrap();
                transaction.execute("INSERT INTO t VALUES (1)", &[]).await.unwrap();
                assert!(proxy.is_armed());
                let answer = transaction.commit().await;
                assert!(answer.is_err_and(|error| error.code().is_none()), "no answer, not a refusal");
                assert!(!proxy.is_armed());
                assert_eq!(count(&env).await, expected, "forward: {forward}");
            }
            let mut client = connect(&config).await.unwrap();
            let transaction = client.transaction().await.unwrap();
            transaction.execute("INSERT INTO t VALUES (1)", &[]).await.unwrap();
            transaction.commit().await.expect("one shot only");
            assert_eq!(count(&env).await, 2);
        })
        .await;
}

#[tokio::test]
async fn cut_stall_and_refuse() {
    tokio::task::LocalSet::new()
        .run_until(async {
            let env = TestEnv::new().await;
            let (proxy, config) = through_proxy(&env).await;
            let old = connect(&config).await.unwrap();
            proxy.refuse(true);
            assert!(connect(&config).await.is_err());
            old.batch_execute("SELECT").await.expect("what is open stays open");
            proxy.refuse(false);
            proxy.stall(true);
            assert!(timeout(Duration::from_millis(200), old.batch_execute("SELECT")).await.is_err());
            assert!(!old.is_closed());
            proxy.stall(false);
            old.batch_execute("SELECT").await.expect("what was held back arrives");
            proxy.cut();
            eventually("the cut is noticed", Duration::from_secs(5), async || old.is_closed().then_some(()))
                .await;
            connect(&config).await.expect("new connections pass").batch_execute("SELECT").await.unwrap();
        })
        .await;
}

#[tokio::test]
async fn a_needle_is_found_across_packets() {
    let echo = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(echo.local_addr().unwrap()).await;
    proxy.cut_when_client_sends(b"needle", false);
    let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
    let (mut server, _) = echo.accept().await.unwrap();
    let mut received = [0; 3];
    client.write_all(b"nee").await.unwrap();
    server.read_exact(&mut received).await.unwrap();
    client.write_all(b"dle").await.unwrap();
    assert!(client.read(&mut received).await.map_or(true, |length| length == 0), "reset or closed");
    assert!(!proxy.is_armed());
    assert!(server.read(&mut received).await.map_or(true, |length| length == 0), "the rest never came");
}
