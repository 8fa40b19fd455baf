//! Producers with random transactions: sizes, rollbacks, savepoints, pauses before and after
//! enqueuing.

use std::{sync::Arc, time::Duration};

use oncebox_tests::TestEnv;
use tokio::{sync::Mutex, task::JoinSet, time::sleep};
use tokio_postgres::{Client, Transaction};

const ENTITIES: i32 = 40;

/// One committed message: its key and, when ordered, its entity and the place in it.
#[derive(Clone, Debug)]
pub(super) struct Committed {
    pub(super) key: String,
    pub(super) place: Option<(i32, i64)>,
}

pub(super) struct Producers {
    pub(super) count: usize,
    pub(super) messages: usize,
    /// The longest pause inside a transaction.
    pub(super) slowest: Duration,
}

impl Producers {
    /// Runs until at least `messages` were committed.
    pub(super) async fn run(&self, env: &TestEnv) -> Vec<Committed> {
        let setup = "CREATE TABLE entity (id int PRIMARY KEY, place bigint NOT NULL);
                     INSERT INTO entity SELECT n, 0 FROM generate_series(0, 39) AS n";
        env.pg().await.batch_execute(setup).await.unwrap();
        let committed = Arc::new(Mutex::new(Vec::new()));
        let mut producers = JoinSet::new();
        for number in 0..self.count {
            let client = env.pg().await;
            let producer = Producer {
                number,
                subject: env.subject("torture"),
                messages: self.messages,
                slowest: self.slowest,
                committed: Arc::clone(&committed),
            };
            producers.spawn(producer.run(client));
        }
        producers.join_all().await;
        let committed = committed.lock().await;
        committed.clone()
    }
}

struct Producer {
    number: usize,
    subject: String,
    messages: usize,
    slowest: Duration,
    committed: Arc<Mutex<Vec<Committed>>>,
}

impl Producer {
    async fn run(self, mut client: Client) {
        let mut transactions = 0;
        while self.committed.lock().await.len() < self.messages {
            transactions += 1;
            let prefix = format!("p{}-{transactions}", self.number);
            let transaction = client.transaction().await.unwrap();
            let written = self.write(transaction, &prefix).await;
            self.committed.lock().await.extend(written);
        }
    }

    /// One transaction; returns its committed messages.
    async fn write(&self, mut transaction: Transaction<'_>, prefix: &str) -> Vec<Committed> {
        // Early, so that its id is low and its commit late; unordered, so that it blocks no entity.
        let mut written = Vec::new();
        if fastrand::u8(..) < 64 {
            written.extend(self.enqueue(&transaction, prefix, "early", fastrand::usize(1..8), None).await);
            self.pause().await;
        }
        let count = match fastrand::u8(..) {
            0..4 => fastrand::usize(100..400),
            4..60 => fastrand::usize(5..40),
            _ => fastrand::usize(1..5),
        };
        if fastrand::u8(..) < 24 {
            let savepoint = transaction.savepoint("undone").await.unwrap();
            self.enqueue(&savepoint, prefix, "undone", 3, None).await;
            savepoint.rollback().await.unwrap();
        }
        let entity = fastrand::bool().then(|| fastrand::i32(0..ENTITIES));
        written.extend(self.enqueue(&transaction, prefix, "main", count, entity).await);
        // Holding an entity for long would only make the others wait.
        if entity.is_none_or(|entity| entity < 4) {
            self.pause().await;
        }
        if fastrand::u8(..) < 26 {
            transaction.rollback().await.unwrap();
            return Vec::new();
        }
        transaction.commit().await.unwrap();
        written
    }

    async fn pause(&self) {
        match fastrand::u8(..) {
            0..3 => sleep(self.slowest.mul_f64(fastrand::f64())).await,
            3..30 => sleep(Duration::from_millis(fastrand::u64(1..60))).await,
            _ => {}
        }
    }

    async fn enqueue(
        &self,
        transaction: &Transaction<'_>,
        prefix: &str,
        part: &str,
        count: usize,
        entity: Option<i32>,
    ) -> Vec<Committed> {
        let first = match entity {
            None => 0,
            // The row's lock makes producers of one entity follow each other.
            Some(id) => {
                let sql = "UPDATE entity SET place = place + $2 WHERE id = $1 RETURNING place - $2";
                transaction.query_one(sql, &[&id, &(count as i64)]).await.unwrap().get(0)
            }
        };
        let committed: Vec<Committed> = (0..count)
            .map(|n| Committed {
                key: format!("{prefix}-{part}-{n}"),
                place: entity.map(|entity| (entity, first + n as i64)),
            })
            .collect();
        let keys: Vec<&str> = committed.iter().map(|message| message.key.as_str()).collect();
        let payloads: Vec<&[u8]> = vec![b"{}"; count];
        let subjects = vec![&self.subject; count];
        let ordering_keys: Option<Vec<String>> = entity.map(|id| vec![format!("entity-{id}"); count]);
        let sql = "SELECT id FROM oncebox.enqueue_all($1, $2, $3, NULL, $4)";
        let rows = transaction.query(sql, &[&keys, &subjects, &payloads, &ordering_keys]).await.unwrap();
        assert!(rows.iter().all(|row| row.get::<_, Option<i64>>(0).is_some()), "keys are fresh");
        committed
    }
}
