//! A relay beside the specification in `model/`: the same transactions and passes, at random, leave
//! the same cursor and the same stream. So the specification's words for `read.sql` and
//! `settle.sql` are true.

use fastrand::Rng;
use oncebox_model::outbox::{
    Action,
    lockstep::{Lockstep, Stands},
    scope,
};
use oncebox_tests::TestEnv;
use tokio_postgres::Client;

use crate::relay::support::{client, connect, stored, values_of, with};

const ROUNDS: u64 = 12;
const STEPS: usize = 70;

#[tokio::test]
async fn a_relay_and_its_specification_leave_the_same_cursor() {
    let mut drains = 0;
    for seed in 0..ROUNDS {
        drains += run(seed).await;
    }
    // Else this would show little.
    assert!(drains > 0, "no pass was cut among late rows");
}

/// Returns how many passes left a drain.
async fn run(seed: u64) -> usize {
    let (env, mut rng) = (TestEnv::new().await, Rng::with_seed(seed));
    let (stream, subject) = (env.stream().await, env.subject("a"));
    let mut model = Lockstep::new(&scope::LOCKSTEP);
    let pg = env.pg().await;
    let keys =
        "SELECT array_agg('k' || n) FROM generate_series(1, 999) AS n WHERE oncebox.lane_of('k' || n) = 0";
    let keys: Vec<String> = pg.query_one(keys, &[]).await.unwrap().get(0);
    let mut worker = connect(&with(&values_of(&env), [("batch-messages", "2")])).await.worker();
    let mut producers = Vec::new();
    for _ in 0..8 {
        producers.push((client(env.database_url()).await, None::<String>));
    }
    let (mut enqueued, mut drains) = (Vec::new(), 0);
    for step in 0..STEPS {
        let actions = model.producers();
        let action = rng.choice(&actions).copied().filter(|_| rng.u8(..3) > 0);
        match action {
            Some(Action::Begin(t)) => {
                let (client, xact) = &mut producers[usize::from(t)];
                client.batch_execute("BEGIN").await.unwrap();
                let row = client.query_one("SELECT pg_current_xact_id()::text", &[]).await.unwrap();
                *xact = Some(row.get(0));
            }
            Some(Action::Enqueue(t)) => {
                let enqueue = "SELECT oncebox.enqueue($1, $2, 'x')";
                let key = &keys[enqueued.len()];
                let row = producers[usize::from(t)].0.query_one(enqueue, &[key, &subject]).await.unwrap();
                enqueued.push((row.get::<_, i64>(0), key.clone()));
            }
            Some(Action::Commit(t)) => producers[usize::from(t)].0.batch_execute("COMMIT").await.unwrap(),
            Some(Action::Abort(t)) => producers[usize::from(t)].0.batch_execute("ROLLBACK").await.unwrap(),
            _ => drop(worker.run_once().await.unwrap()),
        }
        match action {
            Some(action) => model.act(action),
            None => model.pass(usize::MAX),
        }
        let xacts: Vec<Option<&str>> = producers.iter().map(|(_, xact)| xact.as_deref()).collect();
        let real = stands(&pg, &xacts).await;
        assert_eq!(real, model.stands(), "seed {seed}, step {step}, {action:?}");
        drains += usize::from(real.target.is_some());
    }
    let sent: Vec<i64> = stored(&stream).await.iter().map(|message| message.id).collect();
    assert_eq!(sent.len(), model.delivered().len(), "seed {seed}: {sent:?} {:?}", model.delivered());
    drains
}

async fn stands(pg: &Client, xacts: &[Option<&str>]) -> Stands {
    let row = pg
        .query_one(
            "SELECT c.high, c.after,
               (SELECT array_agg(pg_visible_in_snapshot(x::xid8, c.snap) ORDER BY n)
                FROM unnest($1::text[]) WITH ORDINALITY AS x (x, n)),
               CASE WHEN c.target IS NOT NULL THEN
                 (SELECT array_agg(pg_visible_in_snapshot(x::xid8, c.target) ORDER BY n)
                  FROM unnest($1::text[]) WITH ORDINALITY AS x (x, n)) END
             FROM oncebox.lane_cursor AS c WHERE c.lane = 0",
            &[&xacts],
        )
        .await
        .unwrap();
    let small = |id: i64| u8::try_from(id).unwrap();
    Stands {
        high: small(row.get(0)),
        after: row.get::<_, Option<i64>>(1).map(small),
        snap: row.get(2),
        target: row.get(3),
    }
}
