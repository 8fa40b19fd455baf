//! Answers that contradict themselves or their saga: each is a dead letter, counted, shown to
//! operators, and moves nothing.

use oncebox_inbox::Received;
use serde_json::Value;

use crate::{
    console::support::Console,
    operator::status,
    relay::process::run_ok,
    saga::shop::{Shop, data, is_handled, refusal, reply},
    why::support::{assert_held, why},
};

/// The scope of the inbox that takes each command of the shop.
const PARTICIPANT: &str = crate::saga::shop::PARTICIPANT;

/// An answer to the first command, with this key, from the inbox of this scope.
fn answer(key: &str, scope: &str) -> Received {
    reply("o-1:order:reserve", "done 7", key).header("Reply-Scope", scope)
}

#[tokio::test]
async fn each_kind_of_contradiction_is_a_dead_letter_and_is_shown() {
    let mut shop = Shop::new(&[]).await;
    for id in ["o-1", "o-2"] {
        shop.start(id, &data(500)).await.unwrap();
    }
    let before = shop.everything().await;
    let kinds = [
        ("o-2:order:reserve:reply", PARTICIPANT, "of another saga"),
        ("o-1:order:pay:reply", PARTICIPANT, "of another step"),
        ("o-1:order:reserve:#2:reply", PARTICIPANT, "of another attempt"),
        ("o-1:order:reserve:undo:reply", PARTICIPANT, "of its compensation"),
        ("o-1:order:reserve:reply", "payment-service:charge", "of another inbox"),
    ];
    for (key, scope, kind) in kinds {
        let verdict = shop.replies().run(&shop.orchestrator.replies(), &answer(key, scope)).await.unwrap();
        assert!(refusal(verdict).contains("the answer contradicts"), "{kind}");
    }
    assert_eq!(shop.everything().await, before);
    assert_eq!(shop.orchestrator.counts().refused, 5);
    let letters = "SELECT count(*) FROM oncebox.dead_letter WHERE scope = 'saga:replies'";
    assert_eq!(shop.number(letters).await, 5);

    // All five name a command of the first saga, one has a key of the second.
    let url = shop.env.database_url();
    let shown = run_ok(url, &["saga", "show", "o-1:order"]).await;
    for (key, ..) in kinds {
        assert!(shown.contains(key), "{key}: {shown}");
    }
    assert!(shown.contains("payment-service:charge") && shown.contains("REFUSED"), "{shown}");
    let json = run_ok(url, &["saga", "show", "o-2:order", "--json"]).await;
    let json: Value = serde_json::from_str(&json).unwrap();
    let [of_other] = &json["refused"].as_array().unwrap()[..] else { panic!("{json}") };
    assert_eq!((&of_other["key"], &of_other["command"]), (&kinds[0].0.into(), &"o-1:order:reserve".into()));
    // Handled again it is refused again, so no retry is recommended.
    let (_, told) = why(url, "", &[kinds[4].0]).await;
    let of_letter =
        told["answers"].as_array().unwrap().iter().find(|answer| answer["key"] == kinds[4].0).unwrap();
    let remedy = &["mend the participant", "oncebox saga show 'o-1:order'"];
    assert_held(of_letter, "inbox", &["refused it: the answer contradicts its saga"], remedy);
    let status = status::status(url).await;
    let of_inbox = [
        "saga:replies has given 5 messages up",
        "mend the participant",
        "inbox dead list --scope 'saga:replies'",
    ];
    status::assert_finds(&status, &of_inbox);
    assert!(
        !status.to_string().contains("dead retry") && !told.to_string().contains("dead retry"),
        "{status}"
    );
    let console = Console::of(&shop.env, &[]).await;
    let page = console.get("/db/shop/saga?key=o-1:order").await.body;
    assert!(page.contains("Answers that were refused") && page.contains("payment-service:charge"), "{page}");

    let last = answer("o-1:order:reserve:right", PARTICIPANT);
    assert!(is_handled(&shop.replies().run(&shop.orchestrator.replies(), &last).await.unwrap()));
    assert_eq!(shop.sent("o-1").await, ["reserve", "pay"]);
}

/// It is not known yet which inbox the saga of an early answer asks: it waits, and then moves
/// nothing.
#[tokio::test]
async fn an_early_answer_of_another_inbox_moves_nothing_either() {
    let mut shop = Shop::new(&[]).await;
    let early = answer("o-1:order:reserve:reply", "payment-service:charge");
    assert!(is_handled(&shop.replies().run(&shop.orchestrator.replies(), &early).await.unwrap()));
    shop.start("o-1", &data(500)).await.unwrap();
    shop.look().await;
    assert_eq!(shop.sent("o-1").await, ["reserve"]);
    assert_eq!(shop.number("SELECT count(*) FROM oncebox.saga_event").await, 0);
    assert_eq!(shop.orchestrator.counts().foreign, 1);
    // The right one, as early.
    let early = reply("o-2:order:reserve", "done 7", "2").header("Reply-Scope", PARTICIPANT);
    assert!(is_handled(&shop.replies().run(&shop.orchestrator.replies(), &early).await.unwrap()));
    shop.start("o-2", &data(500)).await.unwrap();
    shop.look().await;
    assert_eq!(shop.sent("o-2").await, ["reserve", "pay"]);
}
