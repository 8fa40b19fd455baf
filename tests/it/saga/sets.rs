//! Answers that are ready at once: up to 64 of them share a transaction, and one that is wrong
//! costs itself alone.

use std::time::Duration;

use async_nats::{HeaderMap, jetstream};
use oncebox_inbox::Consumer;
use oncebox_tests::eventually;
use tokio_util::sync::CancellationToken;

use crate::saga::shop::{Shop, data};

const ANSWERS: usize = 64;
const LIMIT: Duration = Duration::from_secs(60);
/// A first pull may come back before all of them were there.
const TRANSACTIONS_MAX: i64 = 3;

/// Starts 64 sagas, puts an answer to the first command of each into the stream, that of each of
/// these ids spoilt, and leads until all are answered. Returns how many transactions have claimed
/// answers.
async fn lead(shop: &mut Shop, spoilt: Option<(usize, [(&str, &str); 3])>) -> i64 {
    for number in 0..ANSWERS {
        shop.start(&format!("o-{number}"), &data(500)).await.unwrap();
    }
    let stream = shop.env.stream().await;
    let (jetstream, subject) = (shop.env.jetstream().await, shop.env.subject("replies"));
    for number in 0..ANSWERS {
        let command = format!("o-{number}:order:reserve");
        let key = format!("{command}:reply");
        let right = [("Idempotency-Key", &*key), ("In-Reply-To", &command), ("Reply-Outcome", "done")];
        let headers = spoilt.filter(|(at, _)| *at == number).map_or(right, |(_, headers)| headers);
        let headers = headers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let headers: HeaderMap = headers.into_iter().collect();
        jetstream.publish_with_headers(subject.clone(), headers, "7".into()).await.unwrap().await.unwrap();
    }
    let (shutdown, orchestrator) = (CancellationToken::new(), shop.orchestrator.clone());
    let mine = jetstream::new(shop.env.nats().await);
    let replies = Consumer::new(mine, stream.cached_info().config.name.clone(), "replies").concurrency(1);
    let answered = async {
        let done = "SELECT count(*) FROM oncebox.inbox WHERE scope = 'saga:replies' AND status <> 'pending'";
        let expected = i64::try_from(ANSWERS).unwrap();
        eventually("all are answered", LIMIT, async || (shop.number(done).await == expected).then_some(()))
            .await;
        shutdown.cancel();
    };
    let (ended, ()) =
        tokio::join!(orchestrator.run(shop.env.pool(3), replies, None, shutdown.clone()), answered);
    ended.unwrap();
    let transactions = "SELECT count(DISTINCT xmin::text) FROM oncebox.inbox WHERE scope = 'saga:replies'";
    shop.number(transactions).await
}

#[tokio::test]
async fn answers_that_are_ready_at_once_are_one_transaction() {
    let mut shop = Shop::new(&[]).await;
    let transactions = lead(&mut shop, None).await;
    assert_eq!(shop.orchestrator.counts().applied, 64);
    assert!(transactions <= TRANSACTIONS_MAX, "{transactions} transactions for 64 answers");
}

#[tokio::test]
async fn a_poisoned_answer_in_a_set_costs_itself_alone() {
    let headers = [
        // Of another step; none at all; to a step that no saga has.
        [
            ("Idempotency-Key", "o-20:order:pay:reply"),
            ("In-Reply-To", "o-20:order:reserve"),
            ("Reply-Outcome", "done"),
        ],
        [("Idempotency-Key", "o-20:poison"), ("In-Reply-To", "nothing"), ("Reply-Outcome", "perhaps")],
        [("Idempotency-Key", "o-20:poison"), ("In-Reply-To", "o-20:order:dance"), ("Reply-Outcome", "done")],
    ];
    for spoilt in headers {
        let mut shop = Shop::new(&[]).await;
        lead(&mut shop, Some((20, spoilt))).await;
        let counts = shop.orchestrator.counts();
        assert_eq!((counts.applied, counts.refused, counts.quarantined), (63, 1, 0), "{spoilt:?}");
        let paid = "SELECT count(*) FROM oncebox.message WHERE key LIKE '%:order:pay'";
        assert_eq!(shop.number(paid).await, 63, "{spoilt:?}");
        assert_eq!(shop.sent("o-20").await, ["reserve"], "{spoilt:?}");
        let letters = "SELECT count(*) FROM oncebox.dead_letter WHERE scope = 'saga:replies'";
        assert_eq!(shop.number(letters).await, 1, "{spoilt:?}");
    }
}
