//! The barrier by itself: every order of actions and compensations, one after another and at once.

use std::time::Duration;

use oncebox_tests::{TestEnv, eventually};
use tokio_postgres::{Client, GenericClient, IsolationLevel, error::SqlState};

const LIMIT: Duration = Duration::from_secs(30);

/// A message at the barrier, and the end of its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// An action that has its effect, if it may.
    Acts,
    /// An action that says no.
    SaysNo,
    /// An action whose transaction is rolled back.
    ActionLost,
    Compensates,
    /// A compensation whose transaction is rolled back.
    CompensationLost,
}

const EVENTS: [Event; 5] =
    [Event::Acts, Event::SaysNo, Event::ActionLost, Event::Compensates, Event::CompensationLost];

async fn environment() -> TestEnv {
    let env = TestEnv::new().await;
    env.pg().await.batch_execute("CREATE TABLE stock (key text, change int)").await.unwrap();
    env
}

async fn ask(client: &impl GenericClient, function: &str, key: &str, flag: bool) -> String {
    let sql = format!("SELECT oncebox.{function}('stock', '', $1, $2)");
    client.query_one(&sql, &[&key, &flag]).await.unwrap().get(0)
}

async fn change(client: &impl GenericClient, key: &str, change: i32) {
    client.execute("INSERT INTO stock (key, change) VALUES ($1, $2)", &[&key, &change]).await.unwrap();
}

async fn act(client: &impl GenericClient, key: &str, has_effect: bool) {
    if ask(client, "enter_action", key, false).await == "act" {
        if has_effect {
            change(client, key, 1).await;
        } else {
            assert_eq!(ask(client, "end_action", key, false).await, "rejected");
        }
    }
}

async fn compensate(client: &impl GenericClient, key: &str) {
    let answer = ask(client, "enter_compensation", key, false).await;
    assert_ne!(answer, "wait", "nothing is under way");
    if answer == "undo" {
        change(client, key, -1).await;
    }
}

async fn happens(client: &mut Client, key: &str, event: Event) {
    let transaction = client.transaction().await.unwrap();
    match event {
        Event::Acts | Event::ActionLost => act(&transaction, key, true).await,
        Event::SaysNo => act(&transaction, key, false).await,
        Event::Compensates | Event::CompensationLost => compensate(&transaction, key).await,
    }
    match event {
        Event::ActionLost | Event::CompensationLost => transaction.rollback().await.unwrap(),
        _ => transaction.commit().await.unwrap(),
    }
}

/// The reservations in the end.
async fn reserved(client: &impl GenericClient, key: &str) -> i64 {
    let sql = "SELECT coalesce(sum(change), 0) FROM stock WHERE key = $1";
    client.query_one(sql, &[&key]).await.unwrap().get(0)
}

/// The model knows no states: a committed compensation, at any place, means nothing is reserved,
/// for good; else an action's reservation counts once.
#[tokio::test]
async fn every_order_of_five_has_the_effect_of_one_in_the_right_order() {
    let env = environment().await;
    let mut client = env.pg().await;
    client.batch_execute("SET synchronous_commit = off").await.unwrap();
    let mut orders: Vec<Vec<Event>> = vec![Vec::new()];
    for _ in 0..4 {
        orders =
            orders.iter().flat_map(|order| EVENTS.map(|event| [&order[..], &[event]].concat())).collect();
    }
    assert_eq!(orders.len(), 625);
    for (number, order) in orders.iter().enumerate() {
        let key = format!("k{number}");
        for (at, event) in order.iter().enumerate() {
            happens(&mut client, &key, *event).await;
            let so_far = &order[..=at];
            let is_undone = so_far.contains(&Event::Compensates);
            let expected = i64::from(!is_undone && so_far.contains(&Event::Acts));
            assert_eq!(reserved(&client, &key).await, expected, "{so_far:?}");
        }
    }
}

/// Two transactions about one action, after something that was committed before.
#[derive(Clone, Copy, Debug)]
struct Meeting {
    level: IsolationLevel,
    before: Option<Event>,
    first: Event,
    /// Whether the first is committed.
    commits: bool,
    second: Event,
}

impl Meeting {
    /// The second asks while the first is open, and waits for its end.
    async fn run(self, one: &mut Client, other: &mut Client, reader: &Client, key: &str) {
        if let Some(event) = self.before {
            happens(one, key, event).await;
        }
        let later = other.build_transaction().isolation_level(self.level).start().await.unwrap();
        // The snapshot of a repeatable read is taken here.
        later.query_one("SELECT count(*) FROM stock", &[]).await.unwrap();
        let open = one.transaction().await.unwrap();
        match self.first {
            Event::Compensates => compensate(&open, key).await,
            first => act(&open, key, first == Event::Acts).await,
        }
        let function = if self.second == Event::Compensates { "enter_compensation" } else { "enter_action" };
        let sql = format!("SELECT oncebox.{function}('stock', '', $1, false)");
        let asks = async { later.query_one(&sql, &[&key]).await };
        let ends = async {
            let waits = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%oncebox.enter_%'";
            eventually("it waits", LIMIT, async || reader.query_opt(waits, &[]).await.unwrap()).await;
            if self.commits { open.commit().await } else { open.rollback().await }.unwrap();
        };
        let (answer, ()) = tokio::join!(asks, ends);
        match answer.as_ref().map(|row| row.get::<_, &str>(0)) {
            Ok("act") => change(&later, key, 1).await,
            Ok("undo") => change(&later, key, -1).await,
            Ok(_) => {}
            // The whole transaction runs again, as an inbox has it.
            Err(error) => {
                assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{self:?}");
                assert!(matches!(self.level, IsolationLevel::RepeatableRead), "{self:?}");
                later.rollback().await.unwrap();
                return happens(other, key, self.second).await;
            }
        }
        later.commit().await.unwrap();
    }

    fn expected(self) -> i64 {
        let events = [self.before, self.commits.then_some(self.first), Some(self.second)];
        let is_undone = events.contains(&Some(Event::Compensates));
        i64::from(!is_undone && events.contains(&Some(Event::Acts)))
    }
}

/// One is open when the other comes: it waits, for each pair and for each end of the first.
#[tokio::test]
async fn of_two_at_once_one_waits_for_the_other() {
    let env = environment().await;
    let (mut one, mut other, reader) = (env.pg().await, env.pg().await, env.pg().await);
    let pairs = [
        (Event::Acts, Event::Compensates),
        (Event::Compensates, Event::Acts),
        (Event::Acts, Event::Acts),
        (Event::Compensates, Event::Compensates),
        (Event::SaysNo, Event::Compensates),
    ];
    let mut meetings = Vec::new();
    for level in [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead] {
        for (first, second) in pairs {
            for before in [None, Some(Event::Acts), Some(Event::SaysNo)] {
                meetings.extend([true, false].map(|commits| Meeting {
                    level,
                    before,
                    first,
                    commits,
                    second,
                }));
            }
        }
    }
    for (number, meeting) in meetings.into_iter().enumerate() {
        let key = format!("m{number}");
        meeting.run(&mut one, &mut other, &reader, &key).await;
        assert_eq!(reserved(&reader, &key).await, meeting.expected(), "{meeting:?}");
    }
}

#[tokio::test]
async fn a_run_under_a_lease_makes_its_compensation_wait_until_it_is_settled() {
    let env = environment().await;
    let client = env.pg().await;
    let enter = async |key: &str| ask(&client, "enter_action", key, true).await;
    let undo = async |key: &str| ask(&client, "enter_compensation", key, true).await;
    let end_undo = "SELECT oncebox.end_compensation('stock', '', $1)";
    assert_eq!(enter("a").await, "act");
    assert_eq!(undo("a").await, "wait");
    assert_eq!(enter("a").await, "act", "a later run of it goes on");
    assert_eq!(ask(&client, "end_action", "a", true).await, "acted");
    assert_eq!(enter("a").await, "acted");
    assert_eq!(undo("a").await, "undo");
    assert_eq!(enter("a").await, "refused");
    assert_eq!(undo("a").await, "undo", "a later run of it goes on");
    assert_eq!(client.query_one(end_undo, &[&"a"]).await.unwrap().get::<_, String>(0), "undone");
    assert_eq!(undo("a").await, "nothing");
    assert!(client.query_one(end_undo, &[&"a"]).await.is_err(), "it is ended already");
    // One that had no effect is not undone, and may be tried again until its compensation comes.
    assert_eq!(enter("b").await, "act");
    assert_eq!(ask(&client, "end_action", "b", false).await, "rejected");
    assert_eq!(enter("b").await, "act");
    assert_eq!(ask(&client, "end_action", "b", false).await, "rejected");
    assert_eq!(undo("b").await, "nothing");
    assert_eq!(enter("b").await, "refused");
}

#[tokio::test]
async fn tenants_and_barriers_have_rows_of_their_own_and_what_has_ended_is_swept() {
    let env = environment().await;
    let client = env.pg().await;
    for (barrier, tenant) in [("stock", ""), ("stock", "acme"), ("cash", "")] {
        let sql = "SELECT oncebox.enter_compensation($1, $2, 'k', false)";
        let answer: String = client.query_one(sql, &[&barrier, &tenant]).await.unwrap().get(0);
        assert_eq!(answer, "nothing");
    }
    let enter = "SELECT oncebox.enter_action('stock', '', 'open', true)";
    client.query_one(enter, &[]).await.unwrap();
    let sweep = async |keep: &str| {
        let sql = format!("SELECT oncebox.sweep_barrier('stock', interval '{keep}', 1)");
        client.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0)
    };
    assert_eq!(sweep("1 hour").await, 0);
    assert_eq!((sweep("0").await, sweep("0").await, sweep("0").await), (1, 1, 0), "one at a time");
    let left = "SELECT string_agg(barrier || ' ' || key, ', ' ORDER BY barrier) FROM oncebox.barrier";
    let left: String = client.query_one(left, &[]).await.unwrap().get(0);
    assert_eq!(left, "cash k, stock open", "what is under way stays");
}

/// The result of two attempts at one action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    /// It has its effect, if it may.
    Acts(i32),
    SaysNo(i32),
    Compensates,
}

/// Enters, and says no where it is to.
async fn attempt(client: &impl GenericClient, key: &str, number: i32, has_effect: bool) {
    let sql = "SELECT oncebox.enter_action('stock', '', $1, false, $2)";
    let is_let_in: String = client.query_one(sql, &[&key, &number]).await.unwrap().get(0);
    match (is_let_in == "act", has_effect) {
        (true, true) => change(client, key, 1).await,
        (true, false) => {
            let sql = "SELECT oncebox.end_action('stock', '', $1, false, $2)";
            let ended: String = client.query_one(sql, &[&key, &number]).await.unwrap().get(0);
            assert_eq!(ended, "rejected");
        }
        (false, _) => {}
    }
}

/// All orders of these, each at most once.
fn permutations(of: &[Attempt]) -> Vec<Vec<Attempt>> {
    if of.is_empty() {
        return vec![Vec::new()];
    }
    let behind = |first: &Attempt| {
        let rest: Vec<Attempt> = of.iter().filter(|one| *one != first).copied().collect();
        let first = *first;
        permutations(&rest).into_iter().map(move |order| [&[first], &order[..]].concat())
    };
    of.iter().flat_map(behind).collect()
}

/// The model: an attempt acts if nothing was undone, none has acted, and no newer one has said no.
#[derive(Debug, Default)]
struct Model {
    reserved: i64,
    is_undone: bool,
    newest: i32,
}

impl Model {
    fn may_act(&self, attempt: i32) -> bool {
        !self.is_undone && self.reserved == 0 && self.newest <= attempt
    }

    fn happens(&mut self, event: Attempt) {
        match event {
            Attempt::Acts(number) => self.reserved += i64::from(self.may_act(number)),
            Attempt::SaysNo(number) if self.may_act(number) => self.newest = number,
            Attempt::SaysNo(_) => {}
            Attempt::Compensates => (self.reserved, self.is_undone) = (0, true),
        }
    }
}

async fn attempted(client: &impl GenericClient, key: &str, event: Attempt) {
    match event {
        Attempt::Acts(number) => attempt(client, key, number, true).await,
        Attempt::SaysNo(number) => attempt(client, key, number, false).await,
        Attempt::Compensates => compensate(client, key).await,
    }
}

const ATTEMPTS: [Attempt; 5] =
    [Attempt::Acts(1), Attempt::SaysNo(1), Attempt::Acts(2), Attempt::SaysNo(2), Attempt::Compensates];

#[tokio::test]
async fn every_order_of_two_attempts_and_a_compensation_has_the_effect_of_one() {
    let env = environment().await;
    let mut client = env.pg().await;
    client.batch_execute("SET synchronous_commit = off").await.unwrap();
    let orders = permutations(&ATTEMPTS);
    assert_eq!(orders.len(), 120);
    for (number, order) in orders.iter().enumerate() {
        let (key, mut model) = (format!("a{number}"), Model::default());
        for event in order {
            model.happens(*event);
            let transaction = client.transaction().await.unwrap();
            attempted(&transaction, &key, *event).await;
            transaction.commit().await.unwrap();
            assert_eq!(reserved(&client, &key).await, model.reserved, "{event:?} in {order:?}");
        }
    }
}

/// One is open when the other comes, which waits for its end, for every pair: the result is the
/// same as one after the other.
#[tokio::test]
async fn attempts_that_overlap_have_the_effect_of_one() {
    let env = environment().await;
    let (mut one, mut other, reader) = (env.pg().await, env.pg().await, env.pg().await);
    let pairs = ATTEMPTS.into_iter().flat_map(|first| ATTEMPTS.map(|second| (first, second)));
    let endings = pairs.flat_map(|pair| [true, false].map(|commits| (pair, commits)));
    for (number, ((first, second), commits)) in endings.enumerate() {
        let (key, mut model) = (format!("p{number}"), Model::default());
        let (open, later) = (one.transaction().await.unwrap(), other.transaction().await.unwrap());
        attempted(&open, &key, first).await;
        let ends = async {
            let waits = "SELECT FROM pg_stat_activity
                         WHERE wait_event_type = 'Lock' AND datname = current_database()";
            eventually("it waits", LIMIT, async || reader.query_opt(waits, &[]).await.unwrap()).await;
            if commits { open.commit().await } else { open.rollback().await }.unwrap();
        };
        tokio::join!(attempted(&later, &key, second), ends);
        later.commit().await.unwrap();
        [commits.then_some(first), Some(second)].into_iter().flatten().for_each(|event| model.happens(event));
        let case = format!("{first:?}, committed: {commits}, then {second:?}");
        assert_eq!(reserved(&reader, &key).await, model.reserved, "{case}");
    }
}

/// A leased run of an attempt is under way: no other one steps into it.
#[tokio::test]
async fn an_attempt_under_a_lease_is_not_joined_by_another() {
    let env = environment().await;
    let client = env.pg().await;
    let enter = async |attempt: i32| -> String {
        let sql = "SELECT oncebox.enter_action('stock', '', 'l', true, $1)";
        client.query_one(sql, &[&attempt]).await.unwrap().get(0)
    };
    assert_eq!(enter(1).await, "act");
    assert_eq!(enter(2).await, "refused");
    assert_eq!(enter(1).await, "act", "its own later run goes on");
    assert_eq!(ask(&client, "end_action", "l", false).await, "rejected");
    assert_eq!((enter(2).await, enter(1).await), ("act".to_owned(), "refused".to_owned()));
    assert_eq!(ask(&client, "enter_compensation", "l", true).await, "wait");
}
