//! Deaths of commands, published by real inboxes: which of them count, with any names of scopes and
//! streams.

use std::time::Duration;

use async_nats::{HeaderMap, jetstream::stream::Config};
use oncebox_inbox::{Consumer, Context, Handler, HandlerError, Inbox, Outcome};
use oncebox_saga::Orchestrator;
use oncebox_tests::eventually;
use serde::de::IgnoredAny;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::saga::shop::{PARTICIPANT, Shop, data};

const LIMIT: Duration = Duration::from_secs(60);
const COMMAND: &str = "o-1:order:reserve";

struct GivesUp;

impl Handler for GivesUp {
    type Message = IgnoredAny;
    type Reply = ();

    async fn handle(&self, _: Context<'_>, _: IgnoredAny) -> Result<Outcome<()>, HandlerError> {
        Ok(Outcome::dead("it is too much"))
    }
}

/// An audit and the participant consume one subject, in a stream with a long name; both give the
/// command up and publish its death where the orchestrator hears it.
#[tokio::test]
async fn a_command_is_dead_when_its_participant_gives_it_up_and_not_when_another_does() {
    let mut shop = Shop::new(&[]).await;
    shop.start("o-1", &data(500)).await.unwrap();
    let (jetstream, name) = (shop.env.jetstream().await, shop.env.name().to_owned());
    let stream_of_commands = format!("{name}-{}", "s".repeat(150));
    let [commands, letters, replies] =
        ["commands", "letters", "replies"].map(|kind| format!("{kind}-{name}"));
    for (stream, subject) in [(&stream_of_commands, &commands), (&letters, &letters), (&replies, &replies)] {
        let config = Config { name: stream.clone(), subjects: vec![subject.clone()], ..Config::default() };
        jetstream.create_stream(config).await.unwrap();
    }
    let headers = HeaderMap::from_iter([("Idempotency-Key".parse().unwrap(), COMMAND.parse().unwrap())]);
    jetstream.publish_with_headers(commands, headers, "{}".into()).await.unwrap().await.unwrap();

    let (mut running, stop) = (JoinSet::new(), CancellationToken::new());
    let consumer = |stream: &str, durable: &str| Consumer::new(jetstream.clone(), stream, durable);
    let gives_up = |scope: &str, durable: &str| {
        let inbox = Inbox::builder(shop.env.pool(2)).scope(scope).single_tenant().build().unwrap();
        consumer(&stream_of_commands, durable).dead_letter_subject(&letters).run(inbox, GivesUp, stop.clone())
    };
    let retention = Duration::from_secs(7_200);
    let orchestrator = Orchestrator::builder("sagas.replies".parse().unwrap());
    let orchestrator = orchestrator.definition(&shop.order).retention(retention).build().unwrap();
    let (leads, pool) = (orchestrator.clone(), shop.env.pool(4));
    let (replies, deaths, ends) = (consumer(&replies, "d"), consumer(&letters, "d"), stop.clone());
    running.spawn(async move { Box::pin(leads.run(pool, replies, Some(deaths), ends)).await.unwrap() });

    let audit = gives_up("analytics:audit", "audit");
    running.spawn(async move { audit.await.unwrap() });
    let is_told = async || (orchestrator.counts().foreign == 1).then_some(());
    eventually("the orchestrator has heard of the audit's letter", LIMIT, is_told).await;
    assert_eq!(shop.sent("o-1").await, ["reserve"]);

    let participant = gives_up(PARTICIPANT, "participant");
    running.spawn(async move { participant.await.unwrap() });
    let is_undone = async || (shop.sent("o-1").await == ["reserve", "reserve:undo"]).then_some(());
    eventually("it is undone", LIMIT, is_undone).await;
    let reason = shop.state("o-1").await.1.unwrap();
    assert_eq!(reason, "step \"reserve\": given up by the participant: it is too much");
    let refused = "SELECT count(*) FROM oncebox.dead_letter WHERE scope LIKE 'saga:%'";
    assert_eq!(shop.number(refused).await, 0);
    // The keys of its messages are kept as long as its sagas.
    let kept =
        "SELECT count(*) FROM oncebox.inbox_scope WHERE scope LIKE 'saga:%' AND retention_seconds = 7200";
    assert_eq!(shop.number(kept).await, 2);
    stop.cancel();
    running.join_all().await;
}
