//! Messages that every consumer must end alike, in each language and with each setting of its pool.

use serde_json::{Value, json};

/// What a consumer makes of a message, once it is done with it.
pub(super) enum Ends {
    /// Committed with its key, after so many runs.
    Done(usize),
    Rejected,
    /// Rolled back and given up at once, for a reason with this text.
    Dead(&'static str),
    /// Rolled back and run again until the limit of attempts is reached, for a reason with this
    /// text; between two runs lie at least so many milliseconds.
    Fails(&'static str, u32),
    /// Given up at once, although a part of the writes was committed.
    Parted,
}

impl Ends {
    /// The sentence of the documents.
    fn says(&self) -> &'static str {
        match self {
            Self::Done(1) => "its writes are committed with the key",
            Self::Done(_) => "rolled back and run again at once, which is no attempt",
            Self::Rejected => "its writes are committed with the key, as a no",
            Self::Dead(_) => "rolled back, a dead letter at once",
            Self::Fails(..) => "rolled back, an attempt; run again after a pause",
            Self::Parted => "a dead letter at once, which says that a part of the writes stays",
        }
    }
}

/// A handler that writes a row to `effect`, then executes statements as text, then does something.
pub(super) struct Scenario {
    pub(super) name: &'static str,
    /// Ends the sentence "the handler ..".
    says: &'static str,
    /// `E` stands for one more row in `effect`.
    sql: &'static [&'static str],
    /// What an adapter knows how to do: see `tests/clients/conform.*`.
    action: &'static str,
    /// Whether it is done once more, with a reply.
    replies_too: bool,
    pub(super) ends: Ends,
    /// The clients that can do it; empty for all.
    only: &'static [&'static str],
}

/// A message of a scenario.
pub(super) struct Sent {
    pub(super) name: String,
    pub(super) payload: Value,
    pub(super) replies: bool,
    pub(super) scenario: &'static Scenario,
}

impl Scenario {
    const fn new(name: &'static str, says: &'static str, ends: Ends) -> Self {
        Self { name, says, sql: &[], action: "return", replies_too: false, ends, only: &[] }
    }

    const fn sql(self, sql: &'static [&'static str]) -> Self {
        Self { sql, ..self }
    }

    const fn action(self, action: &'static str) -> Self {
        Self { action, ..self }
    }

    const fn with_and_without_reply(self) -> Self {
        Self { replies_too: true, ..self }
    }

    const fn only(self, only: &'static [&'static str]) -> Self {
        Self { only, ..self }
    }

    fn sent(&'static self, replies: bool) -> Sent {
        let name = format!("{}{}", self.name, if replies { "-reply" } else { "" });
        let effect = format!("INSERT INTO effect (name) VALUES ('{name}')");
        let sql: Vec<String> = self.sql.iter().map(|text| text.replace('E', "\0")).collect();
        let sql: Vec<String> = sql
            .iter()
            .map(|text| if text == "\0" { effect.clone() } else { text.replace('\0', "E") })
            .collect();
        let payload = json!({ "name": name, "sql": sql, "do": self.action, "reply": replies });
        Sent { name, payload, replies, scenario: self }
    }
}

/// The messages of all scenarios that this client can do.
pub(super) fn sent_to(client: &str) -> Vec<Sent> {
    let can = |scenario: &&Scenario| scenario.only.is_empty() || scenario.only.contains(&client);
    SCENARIOS
        .iter()
        .filter(can)
        .flat_map(|scenario| {
            let with_reply = scenario.replies_too.then(|| scenario.sent(true));
            [scenario.sent(false)].into_iter().chain(with_reply)
        })
        .collect()
}

/// The table of the documents.
pub(super) fn documented() -> String {
    let rows = SCENARIOS.iter().filter(|scenario| scenario.only.is_empty() || scenario.only == NOT_RUST);
    let rows = rows.map(|scenario| format!("| {} | {} |\n", scenario.says, scenario.ends.says()));
    format!("| the handler | what happens |\n|---|---|\n{}", rows.collect::<String>())
}

/// The first pause of these consumers, of which half may be chance.
const PAUSE: u32 = 200;
const ENDED: &str = "the handler ended the transaction by itself";
/// Rust's types rule out two of these. Its inbox notices a changed session when the next claim
/// fails, which `inbox::restarted` tests.
const NOT_RUST: &[&str] = &["python", "typescript", "go"];

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario::new("returns", "returns, with or without a reply", Ends::Done(1)).with_and_without_reply(),
    Scenario::new("rejects", "rejects the message", Ends::Rejected).action("reject"),
    Scenario::new("gives-up", "gives the message up", Ends::Dead("no use")).action("dead"),
    Scenario::new("fails", "fails", Ends::Fails("as it was told", PAUSE)).action("fail"),
    Scenario::new("panics", "panics, or throws no error at all", Ends::Fails("", PAUSE)).action("panic"),
    Scenario::new("asks", "asks for a retry after some time", Ends::Fails("asked for a retry", 700))
        .action("retry"),
    Scenario::new("loses", "loses a race (40001, 40P01)", Ends::Done(2)).action("conflict"),
    Scenario::new("hangs", "takes longer than it may", Ends::Fails("", PAUSE)).action("hang"),
    Scenario::new("hides", "hides an error of PostgreSQL", Ends::Fails("aborted", PAUSE))
        .sql(&["SELECT 1 / 0"])
        .with_and_without_reply(),
    Scenario::new("rolls-back", "rolls back by itself", Ends::Fails(ENDED, PAUSE))
        .sql(&["ROLLBACK"])
        .with_and_without_reply(),
    Scenario::new("begins-again", "rolls back, begins again and writes", Ends::Fails(ENDED, PAUSE))
        .sql(&["ROLLBACK", "BEGIN", "E"])
        .with_and_without_reply(),
    Scenario::new("recovers", "does so after an error", Ends::Fails(ENDED, PAUSE))
        .sql(&["SELECT 1 / 0", "ROLLBACK", "BEGIN", "E"])
        .with_and_without_reply(),
    Scenario::new("chains", "sends ROLLBACK AND CHAIN and writes", Ends::Fails(ENDED, PAUSE))
        .sql(&["ROLLBACK AND CHAIN", "E"])
        .with_and_without_reply(),
    Scenario::new("commits", "commits by itself", Ends::Parted).sql(&["COMMIT"]).with_and_without_reply(),
    Scenario::new("goes-on", "commits, begins again and writes", Ends::Parted)
        .sql(&["COMMIT", "BEGIN", "E"])
        .with_and_without_reply(),
    Scenario::new("commits-chained", "sends COMMIT AND CHAIN and writes", Ends::Parted)
        .sql(&["COMMIT AND CHAIN", "E"])
        .with_and_without_reply(),
    Scenario::new("commits-and-fails", "commits by itself, then fails", Ends::Parted)
        .sql(&["COMMIT"])
        .action("fail"),
    Scenario::new("leaves-work", "leaves work behind that goes on", Ends::Done(1))
        .action("late")
        .only(NOT_RUST),
    Scenario::new("sets-role", "sets the session's role", Ends::Done(1))
        .sql(&["SET ROLE pg_monitor"])
        .only(NOT_RUST),
    Scenario::new("sets-user", "sets the session's user", Ends::Done(1))
        .sql(&["SET SESSION AUTHORIZATION pg_monitor"])
        .only(NOT_RUST),
    Scenario::new("sets-read-only", "makes the session read only", Ends::Done(1))
        .sql(&["SET default_transaction_read_only = on"])
        .only(NOT_RUST),
    Scenario::new("sets-path", "sets the session's search path", Ends::Done(1))
        .sql(&["SET search_path = pg_catalog"])
        .only(NOT_RUST),
    Scenario::new("sets-local", "sets role and path for its transaction", Ends::Done(1))
        .sql(&["SET LOCAL search_path = pg_catalog", "SET LOCAL ROLE pg_monitor"]),
    Scenario::new("sets-types", "sets types or rows of its connection, and enqueues", Ends::Done(1))
        .action("types")
        .only(NOT_RUST)
        .with_and_without_reply(),
    Scenario::new("waits-for-another", "gets no connection of a pool of its own", Ends::Fails("", PAUSE))
        .action("pool"),
    Scenario::new("odd-reply", "returns a value that has no JSON", Ends::Dead("reply")).action("odd-reply"),
    Scenario::new("long-reply", "returns more than 1 MiB", Ends::Dead("1 MiB")).action("long-reply"),
    Scenario::new("odd-error", "fails with an error that cannot say why", Ends::Fails("", PAUSE))
        .action("odd-error"),
    Scenario::new("odd-pause", "asks for a pause that is no time", Ends::Fails("", PAUSE))
        .action("odd-pause")
        .only(&["python", "typescript"]),
];
