//! The test kit with handlers under leases and with requests over HTTP: sound ones pass, and a
//! report names the statement at which a careless one doubled its effect.

use std::time::Duration;

use axum::{Router, body::Body, http::Request, routing::post};
use oncebox_http::{Claim, IdempotencyLayer};
use oncebox_inbox::{
    CallError, HandlerError, Inbox, Leased, LeasedContext, LeasedHandler, Outcome, Received, Reconciled,
};
use oncebox_testkit::{Process, Run, Scratch, TestKit};
use oncebox_tests::TestEnv;
use tokio_postgres::NoTls;
use tower_service::Service as _;

/// The kit waits for the lease of each process that died.
const LEASE: Duration = Duration::from_millis(300);

async fn kit(env: &TestEnv) -> TestKit {
    let tables = "CREATE TABLE charged (key text, cents bigint); CREATE TABLE audit (key text)";
    env.pg().await.batch_execute(tables).await.unwrap();
    TestKit::new(env.database_url())
        .message(Received::new("orders.placed", "7").header("Idempotency-Key", "a"))
        .settle_within(Duration::from_secs(60))
}

/// A provider that charges for each call; its books are a table, over connections that die with the
/// process.
struct Provider(String);

impl Provider {
    async fn run(&self, sql: &str) -> Result<u64, CallError> {
        let (client, connection) =
            tokio_postgres::connect(&self.0, NoTls).await.map_err(CallError::failed)?;
        let running = async {
            let ran = client.execute(sql, &[]).await;
            drop(client);
            ran
        };
        let (ran, _) = futures_util::join!(running, connection);
        ran.map_err(CallError::unknown)
    }
}

/// Charges through an effect; a careless one also notes each run, outside of any effect.
struct Charge {
    provider: Provider,
    is_careless: bool,
}

impl LeasedHandler for Charge {
    type Message = i64;
    type Reply = ();

    async fn handle(&self, cx: &LeasedContext<'_>, cents: i64) -> Result<Outcome<()>, HandlerError> {
        if self.is_careless {
            let noted = self.provider.run("INSERT INTO audit VALUES ('run')").await;
            noted.map_err(|_| HandlerError::message("the audit is away"))?;
        }
        let of = |key: &oncebox_outbox::Key| format!("SELECT FROM charged WHERE key = '{key}'");
        cx.effect("charge")
            // The kit waits for this too, when a process dies before its call.
            .settles_within(Duration::from_millis(200))
            .call(|key| async move {
                let charge = format!("INSERT INTO charged VALUES ('{key}', {cents})");
                self.provider.run(&charge).await
            })
            .reconcile(|key| async move {
                let found = self.provider.run(&of(&key)).await?;
                Ok(if found > 0 { Reconciled::Happened(found) } else { Reconciled::Absent })
            })
            .await?;
        Ok(Outcome::done(()))
    }
}

fn cashier(scratch: &Scratch, is_careless: bool) -> (Leased, Charge) {
    let short = Duration::from_millis(20);
    let inbox = Inbox::builder(scratch.pool(4)).scope("bank:charge").single_tenant().backoff(short, short);
    let provider = Provider(scratch.url().to_owned());
    (inbox.attempts_max(50).leased(LEASE).build().unwrap(), Charge { provider, is_careless })
}

#[tokio::test]
async fn a_handler_under_a_lease_is_killed_at_each_statement_and_a_careless_one_is_named() {
    let env = TestEnv::new().await;
    let kit = kit(&env).await;
    let sound = kit.check(|scratch| cashier(scratch, false)).await.unwrap();
    sound.assert_once();
    // Claim, begin, the provider's own, end, finish.
    assert!(sound.statements() >= 5, "{sound}");

    let careless = kit.check(|scratch| cashier(scratch, true)).await.unwrap().to_string();
    assert!(careless.contains("public.audit: 1 too many"), "{careless}");
    let named = "`INSERT INTO audit VALUES ('run')`, after the server had carried it out:";
    assert!(careless.contains(named), "{careless}");
}

/// A service with an HTTP layer, which gets each message as a request.
struct Shop(Router);

impl Process for Shop {
    async fn run(&self, message: &Received) -> Run {
        let key = format!("\"{}\"", message.header_value("Idempotency-Key").unwrap());
        let request = Request::post("/charges").header("Idempotency-Key", key);
        let request = request.body(Body::from(message.payload().to_vec())).unwrap();
        match self.0.clone().call(request).await.unwrap().status().as_u16() {
            409 => Run::InFlight,
            500.. => Run::Failed("the shop is not well".to_owned()),
            _ => Run::Ended,
        }
    }
}

fn shop(scratch: &Scratch) -> Shop {
    let charge = async |claim: Claim| {
        let sql = "INSERT INTO charged VALUES ($1, 7)";
        let charged = claim.transaction().execute(sql, &[&claim.key().as_str()]).await;
        charged.map(|_| "charged").map_err(|_| axum::http::StatusCode::INTERNAL_SERVER_ERROR)
    };
    let once = IdempotencyLayer::builder(scratch.pool(4)).scope("shop").single_tenant().build().unwrap();
    Shop(Router::new().route("/charges", post(charge)).route_layer(once))
}

#[tokio::test]
async fn requests_are_killed_at_each_statement() {
    let env = TestEnv::new().await;
    let report = kit(&env).await.check(shop).await.unwrap();
    report.assert_once();
    assert!(report.statements() >= 4, "{report}");
}
