//! Messages that every consumer must end alike, in each language, over each driver and with each
//! setting of its pool; and requests, whose handlers do the same.

use serde_json::{Map, Value, json};

/// A column of the documents: consumers that end every message alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Column {
    Python,
    TypeScript,
    Go,
    /// Over tokio-postgres, and over each driver.
    Rust,
    /// Rust in leased mode: the handler writes in `finish`.
    Leased,
    /// A loop that calls the SQL functions.
    Functions,
    /// A request with an `Idempotency-Key`.
    Http,
}

impl Column {
    pub(super) const ALL: [Self; 7] = [Python, TypeScript, Go, Rust, Leased, Functions, Http];

    /// Its name in `schema/vectors/endings.json`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Python => "python",
            TypeScript => "typescript",
            Go => "go",
            Rust => "rust",
            Leased => "leased",
            Functions => "functions",
            Http => "http",
        }
    }

    /// Of a consumer that the tests know by this name.
    pub(super) fn of(client: &str) -> Self {
        match client {
            "python" => Python,
            "typescript" => TypeScript,
            "go" | "java" => Go,
            "leased" => Leased,
            "functions" => Functions,
            _ => Rust,
        }
    }

    /// Whether it finds key and tenant by itself.
    pub(super) fn reads_headers(self) -> bool {
        self != Functions
    }

    /// How often a handler may run in vain after others that have changed their sessions, before
    /// these are closed: for a search path; and for a session that only reads in leased mode, whose
    /// end has another connection than the claim.
    pub(super) fn runs_in_vain(self) -> usize {
        match self {
            Rust | Http => 1,
            Leased => 2,
            Python | TypeScript | Go | Functions => 0,
        }
    }
}

use Column::{Functions, Go, Http, Leased, Python, Rust, TypeScript};

/// The end of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ends {
    /// Committed with its key, after this number of runs.
    Done(usize),
    Rejected,
    /// Rolled back and given up at once, for a reason with this text.
    Dead(&'static str),
    /// Rolled back and run again until the limit of attempts is reached, for a reason with this
    /// text; between two runs lie at least this number of milliseconds.
    Fails(&'static str, u32),
    /// Rolled back, and done by its second run.
    Recovers,
    /// Given up at once, although a part of the writes was committed.
    Parted,
    /// Of a request: committed with its key, and the response is not stored.
    Unkept,
    /// It cannot be tried, for this reason.
    Never(&'static str),
}

/// The words of the documents: their meaning for a message, and for a request.
const WORDS: [(Ends, &str, &str); 7] = [
    (
        Ends::Done(1),
        "its writes are committed with the key",
        "the same, and a repeated request gets the same response",
    ),
    (Ends::Rejected, "its writes are committed with the key, as a no", "the same: a 4xx with `KeepWrites`"),
    (
        Ends::Done(2),
        "rolled back and run again at once, which is no attempt",
        "500 or 503, rolled back; a repeated request is done",
    ),
    (
        Ends::Fails("", 0),
        "rolled back, an attempt; run again after a pause",
        "500 or 503, rolled back; a repeated request runs it again",
    ),
    (
        Ends::Dead(""),
        "rolled back, a dead letter at once",
        "another 4xx, rolled back; a repeated request gets the same response",
    ),
    (
        Ends::Parted,
        "a dead letter at once, which says that a part of the writes stays",
        "500 or 503, and a repeated request gets 410, which says that a part may be done",
    ),
    (Ends::Unkept, "-", "its writes are committed with the key; a repeated request gets 410"),
];

impl Ends {
    /// The word of the documents.
    fn word(self) -> &'static str {
        match self {
            Self::Done(1) => "done",
            Self::Done(_) => "again",
            Self::Rejected => "no",
            Self::Dead(_) => "dead",
            Self::Fails(..) | Self::Recovers => "attempt",
            Self::Parted => "part",
            Self::Unkept => "gone",
            Self::Never(reason) => reason,
        }
    }

    /// As the vectors have it.
    fn json(self) -> Value {
        match self {
            Self::Done(runs) => json!({ "end": self.word(), "runs": runs }),
            Self::Dead(reason) => json!({ "end": "dead", "reason": reason }),
            Self::Fails(reason, pause) => json!({ "end": "attempt", "reason": reason, "pause_ms": pause }),
            Self::Never(reason) => json!({ "end": "never", "reason": reason }),
            _ => json!({ "end": self.word() }),
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
    /// The capabilities of an adapter: see `tests/clients/conform.*`.
    action: &'static str,
    /// With which replies it is done: none, or one.
    replies: &'static [bool],
    /// Whether it changes the session for later messages.
    sets: bool,
    ends: Ends,
    except: &'static [(Column, Ends)],
}

/// A message of a scenario.
#[derive(Clone)]
pub(super) struct Sent {
    pub(super) name: String,
    pub(super) payload: Value,
    pub(super) replies: bool,
    sets: bool,
    pub(super) ends: Ends,
}

impl Sent {
    /// One more message, which fails at first.
    pub(super) fn recovering(name: &str, payload: Value) -> Self {
        Self { name: name.to_owned(), payload, replies: false, sets: false, ends: Ends::Recovers }
    }

    /// Whether its handler ends the transaction by itself.
    pub(super) fn ends_its_transaction(&self) -> bool {
        let ends = |text: &str| text.starts_with("COMMIT") || text.starts_with("ROLLBACK");
        self.payload["sql"].as_array().is_some_and(|sql| sql.iter().filter_map(Value::as_str).any(ends))
    }

    /// Whether later messages meet a session that it has changed: it is not rolled back.
    pub(super) fn changes_its_session(&self) -> bool {
        self.sets && self.ends == Ends::Done(1)
    }
}

impl Scenario {
    const fn new(name: &'static str, says: &'static str, ends: Ends) -> Self {
        Self { name, says, sql: &[], action: "return", replies: &[false], sets: false, ends, except: &[] }
    }

    /// Sets something for the session, and is done.
    const fn sets(name: &'static str, says: &'static str, sql: &'static [&'static str]) -> Self {
        Self { sets: true, ..Self::new(name, says, Ends::Done(1)).sql(sql) }
    }

    const fn sql(self, sql: &'static [&'static str]) -> Self {
        Self { sql, ..self }
    }

    const fn action(self, action: &'static str) -> Self {
        Self { action, ..self }
    }

    const fn with_and_without_reply(self) -> Self {
        Self { replies: &[false, true], ..self }
    }

    const fn with_reply(self) -> Self {
        Self { replies: &[true], ..self }
    }

    const fn except(self, except: &'static [(Column, Ends)]) -> Self {
        Self { except, ..self }
    }

    fn ends(&self, column: Column) -> Ends {
        self.except.iter().find(|(of, _)| *of == column).map_or(self.ends, |(_, ends)| *ends)
    }

    fn sent(&self, ends: Ends, replies: bool) -> Sent {
        let name = format!("{}{}", self.name, if replies { "-reply" } else { "" });
        let effect = format!("INSERT INTO effect (name) VALUES ('{name}')");
        let sql: Vec<&str> = self.sql.iter().map(|text| if *text == "E" { &effect } else { *text }).collect();
        let payload = json!({ "name": name, "sql": sql, "do": self.action, "reply": replies });
        Sent { name, payload, replies, sets: self.sets, ends }
    }
}

/// The messages of all scenarios that this consumer can do.
pub(super) fn sent_to(column: Column) -> Vec<Sent> {
    let sent = |scenario: &Scenario| {
        let ends = scenario.ends(column);
        let can = !matches!(ends, Ends::Never(_));
        scenario
            .replies
            .iter()
            .filter(|_| can)
            .map(|replies| scenario.sent(ends, *replies))
            .collect::<Vec<_>>()
    };
    SCENARIOS.iter().flat_map(sent).collect()
}

/// One more message, whose handler returns.
pub(super) fn returns(name: &str) -> Sent {
    let payload = json!({ "name": name, "sql": [], "do": "return", "reply": false });
    Sent { name: name.to_owned(), payload, replies: false, sets: false, ends: Ends::Done(1) }
}

/// All scenarios, for programs in any language: `schema/vectors/endings.json`.
pub(super) fn endings() -> Value {
    let scenario = |scenario: &Scenario| {
        let sent = |replies: &bool| scenario.sent(scenario.ends, *replies).payload;
        let payloads: Vec<Value> = scenario.replies.iter().map(sent).collect();
        let end = |column: Column| (column.name().to_owned(), scenario.ends(column).json());
        let ends: Map<String, Value> = Column::ALL.into_iter().map(end).collect();
        json!({ "says": format!("the handler {}", scenario.says), "payloads": payloads, "ends": ends })
    };
    SCENARIOS.iter().map(scenario).collect()
}

/// The tables of the documents.
pub(super) fn documented() -> String {
    let words =
        WORDS.iter().map(|(ends, message, request)| format!("| {} | {message} | {request} |\n", ends.word()));
    let rows = SCENARIOS.iter().map(|scenario| {
        let cells = Column::ALL.iter().map(|column| format!(" {} |", scenario.ends(*column).word()));
        format!("| {} |{}\n", scenario.says, cells.collect::<String>())
    });
    format!(
        "| | a message | an HTTP request |\n|---|---|---|\n{}\n\
         | the handler | Python | TypeScript | Go, Java | Rust | leased | SQL | HTTP |\n|---|---|---|---|---|---|---|---|\n{}",
        words.collect::<String>(),
        rows.collect::<String>()
    )
}

/// The first pause of these consumers, of which half may be chance.
const PAUSE: u32 = 200;
const ENDED: &str = "the handler ended the transaction by itself";
/// After the handler they store that the key is done, also without a reply. This role may not do
/// that.
const DENIED: &[(Column, Ends)] = &[
    (Leased, Ends::Fails("permission denied", PAUSE)),
    (Functions, Ends::Fails("", PAUSE)),
    (Http, Ends::Fails("", 0)),
];
/// Its client sends no COMMIT.
const REFUSED: &[(Column, Ends)] = &[(TypeScript, Ends::Fails(ENDED, PAUSE))];
const NO_TYPES: Ends = Ends::Never("has none");

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario::new("returns", "returns, with or without a reply", Ends::Done(1)).with_and_without_reply(),
    Scenario::new("rejects", "rejects the message", Ends::Rejected).action("reject"),
    Scenario::new("gives-up", "gives the message up", Ends::Dead("no use")).action("dead"),
    Scenario::new("fails", "fails", Ends::Fails("as it was told", PAUSE)).action("fail"),
    Scenario::new("panics", "panics, or throws no error at all", Ends::Fails("", PAUSE)).action("panic"),
    Scenario::new("asks", "asks for a retry after some time", Ends::Fails("asked for a retry", 700))
        .action("retry"),
    Scenario::new("loses", "loses a race (40001, 40P01)", Ends::Done(2))
        .action("conflict")
        .except(&[(Leased, Ends::Done(1))]),
    Scenario::new("hangs", "takes longer than it may", Ends::Fails("", PAUSE)).action("hang"),
    Scenario::new("sleeps", "has a statement that takes longer than it may", Ends::Fails("", PAUSE))
        .sql(&["SELECT pg_sleep(60)"]),
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
    Scenario::new("commits", "commits by itself", Ends::Parted)
        .sql(&["COMMIT"])
        .with_and_without_reply()
        .except(REFUSED),
    Scenario::new("goes-on", "commits, begins again and writes", Ends::Parted)
        .sql(&["COMMIT", "BEGIN", "E"])
        .with_and_without_reply()
        .except(REFUSED),
    Scenario::new("commits-chained", "sends COMMIT AND CHAIN and writes", Ends::Parted)
        .sql(&["COMMIT AND CHAIN", "E"])
        .with_and_without_reply()
        .except(REFUSED),
    Scenario::new("commits-and-fails", "commits by itself, then fails", Ends::Parted)
        .sql(&["COMMIT"])
        .action("fail")
        .except(REFUSED),
    Scenario::new("commits-and-waits", "commits by itself, then takes longer than it may", Ends::Parted)
        .sql(&["COMMIT"])
        .action("hang")
        .except(REFUSED),
    Scenario::new("commits-and-sleeps", "commits, and a statement takes longer than it may", Ends::Parted)
        .sql(&["COMMIT", "BEGIN", "SELECT pg_sleep(60)"])
        .except(REFUSED),
    Scenario::new("leaves-work", "leaves work behind that goes on", Ends::Done(1)).action("late").except(&[
        (Rust, Ends::Never("does not compile")),
        (Leased, Ends::Never("does not compile")),
        (Functions, Ends::Never("yours")),
        (Http, Ends::Never("does not compile")),
    ]),
    Scenario::sets("sets-role", "sets the session's role", &["SET ROLE pg_monitor"]).except(DENIED),
    Scenario::sets("sets-user", "sets the session's user", &["SET SESSION AUTHORIZATION pg_monitor"])
        .except(DENIED),
    Scenario::sets(
        "sets-read-only",
        "makes the session read only",
        &["SET default_transaction_read_only = on"],
    ),
    Scenario::sets("sets-path", "sets the session's search path", &["SET search_path = pg_catalog"]),
    Scenario::new("sets-local", "sets role and path for its transaction", Ends::Done(1))
        .sql(&["SET LOCAL search_path = pg_catalog", "SET LOCAL ROLE pg_monitor"])
        .except(DENIED),
    Scenario::new("replies-as-another", "sets a role that may not store its reply", Ends::Fails("", PAUSE))
        .sql(&["SET LOCAL ROLE pg_monitor"])
        .with_reply(),
    Scenario::new("sets-types", "sets types or rows of its connection, and enqueues", Ends::Done(1))
        .action("types")
        .with_and_without_reply()
        .except(&[(Rust, NO_TYPES), (Leased, NO_TYPES), (Functions, NO_TYPES), (Http, NO_TYPES)]),
    Scenario::new("waits-for-another", "gets no connection of a pool of its own", Ends::Fails("", PAUSE))
        .action("pool"),
    Scenario::new("odd-reply", "returns a value that has no JSON", Ends::Dead("reply"))
        .action("odd-reply")
        .except(&[(Http, Ends::Fails("", 0))]),
    Scenario::new("long-reply", "returns more than 1 MiB", Ends::Dead("1 MiB"))
        .action("long-reply")
        .except(&[(Http, Ends::Unkept)]),
    Scenario::new("odd-error", "fails with an error that cannot say why", Ends::Fails("", PAUSE))
        .action("odd-error"),
    Scenario::new("odd-pause", "asks for a pause that is no time", Ends::Fails("", PAUSE))
        .action("odd-pause")
        .except(&[
            (Go, Ends::Never("does not compile")),
            (Rust, Ends::Never("does not compile")),
            (Leased, Ends::Never("does not compile")),
            (Functions, Ends::Never("yours")),
            (Http, Ends::Never("has none")),
        ]),
];
