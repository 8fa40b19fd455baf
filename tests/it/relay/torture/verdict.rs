//! The committed messages against the stream.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use async_nats::jetstream::consumer::pull::OrderedConfig;
use futures_util::StreamExt;
use oncebox_tests::{Patience, TestEnv};
use tokio::time::sleep;

use super::producers::Committed;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) stored: usize,
    pub(super) lost: usize,
    pub(super) invented: usize,
    pub(super) doubled: usize,
    pub(super) out_of_order: usize,
}

impl Verdict {
    /// Waits until the stream holds as many messages as were committed, or has got no more for as
    /// long as the limit.
    pub(super) async fn await_drained(env: &TestEnv, committed: &[Committed], limit: Duration) -> Self {
        let stream = env.stream().await;
        let mut patience = Patience::new(limit);
        loop {
            let stored = stream.get_info().await.unwrap().state.messages;
            if stored >= committed.len() as u64 || patience.is_over(stored) {
                break;
            }
            sleep(Duration::from_millis(100)).await;
        }
        // A message that should not be there gets its chance to arrive.
        sleep(Duration::from_millis(500)).await;
        Self::compare(&keys_in_stream(env).await, committed)
    }

    fn compare(stored: &[String], committed: &[Committed]) -> Self {
        let expected: HashMap<&str, Option<(i32, i64)>> =
            committed.iter().map(|message| (message.key.as_str(), message.place)).collect();
        let mut verdict = Self { stored: stored.len(), ..Self::default() };
        let mut seen = HashSet::new();
        let mut last: HashMap<i32, i64> = HashMap::new();
        for key in stored {
            verdict.doubled += usize::from(!seen.insert(key.as_str()));
            match expected.get(key.as_str()) {
                None => verdict.invented += 1,
                Some(None) => {}
                Some(Some((entity, place))) => {
                    let before = last.insert(*entity, *place);
                    verdict.out_of_order += usize::from(before.is_some_and(|before| before >= *place));
                }
            }
        }
        verdict.lost = expected.keys().filter(|key| !seen.contains(*key)).count();
        verdict
    }
}

async fn keys_in_stream(env: &TestEnv) -> Vec<String> {
    let stream = env.stream().await;
    let total = stream.get_info().await.unwrap().state.messages;
    let consumer = stream.create_consumer(OrderedConfig::default()).await.unwrap();
    let messages = consumer.messages().await.unwrap().take(usize::try_from(total).unwrap());
    let key = |message: async_nats::jetstream::Message| {
        message.headers.as_ref().unwrap().get("Idempotency-Key").unwrap().to_string()
    };
    messages.map(|message| key(message.unwrap())).collect().await
}

#[test]
fn the_verdict_sees_each_fault() {
    let committed: Vec<Committed> = [("a", None), ("b", Some((1, 0))), ("c", Some((1, 1)))]
        .map(|(key, place)| Committed { key: key.into(), place })
        .into();
    let check = |stored: &[&str], expected: Verdict| {
        let stored: Vec<String> = stored.iter().map(|key| (*key).to_owned()).collect();
        assert_eq!(Verdict::compare(&stored, &committed), expected);
    };
    check(&["b", "a", "c"], Verdict { stored: 3, ..Verdict::default() });
    check(&["c", "a", "b"], Verdict { stored: 3, out_of_order: 1, ..Verdict::default() });
    check(&["b", "c"], Verdict { stored: 2, lost: 1, ..Verdict::default() });
    check(&["b", "a", "c", "a"], Verdict { stored: 4, doubled: 1, ..Verdict::default() });
    check(&["b", "a", "c", "x"], Verdict { stored: 4, invented: 1, ..Verdict::default() });
}
