//! Integration tests on real PostgreSQL and real nats-server.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics; helpers of tests are tests")]

mod schema {
    mod keys; // keys, subjects, headers, payloads: SQL and Rust judge alike
    mod enqueue; // enqueue in SQL: once per key, in the caller's transaction, alone and in bulk
    mod turns; // a key is taken once in a turn and the one before: each safeguard is needed
    mod locked; // a turn ends beside other work on the tables of the log
    mod migrate; // migrations: many at once, any schema, any user; versions; the committed dump
    pub(crate) mod beside; // the migration to the next version, while the database is in use
    mod reference; // docs/sql.md: the functions, their types, defaults and errors
    mod script; // the migrations as SQL for other tools
    mod roles; // least privilege, and functions that cannot be hijacked
    mod operators; // actions of operators are functions with an audit; nobody forges an event
    mod moments; // times and spans without an end, in each function that takes one
    mod role_names; // the names of roles, each database's own
}

mod outbox {
    mod transactions; // the outbox crate: what a producer may rely on
}

mod relay {
    pub(crate) mod support; // what the relay's tests share
    pub(crate) mod process; // the program as a process
    mod torture; // producers and relays at random, a verdict over the whole stream
    mod lockstep; // a relay beside the specification: the same steps leave the same cursor
    mod crash; // a relay dies between any two steps, or never learns whether it committed
    mod load; // killed under load, cut off from NATS at random, two at once
    mod held; // transactions left open delay nobody else
    mod two_phase; // producers with two-phase commit
    mod restore; // a dump restored into another cluster
    mod home; // a copied database stays silent, one that has moved goes on
    mod low_ids; // ids of new messages that stand below the cursors
    mod ids; // what a stream takes for a copy is one
    mod parked; // messages that cannot be published are set aside
    mod parked_load; // a hundred thousand of them slow nothing else
    mod pauses; // what operators pause and throttle
    mod outage; // servers go away and come back
    mod resume; // how soon a relay goes on when a server is back
    mod slow; // a broker behind a narrow or a long line: slower, but never away
    mod rounds; // a pass goes on while messages keep coming, and loses none
    mod quiet; // a relay at rest looks before it claims, and forgets no message
    mod fleet; // many relays: one leads, the next takes over, half of them killed
    mod suspended; // a relay is suspended in any step of a pass: another goes on
    mod waiting; // what one cause refuses waits together, and a few messages are tried for all
    mod encodings; // databases whose encoding is not UTF-8: what cannot be read is set aside alone
    mod segments; // the ring of segments turns under relays, producers and commands
    mod aside; // what is set aside carries its message: segments, dumps, losses and replays
    mod sizes; // a stream that has no room for large messages gets the small ones
    mod contracts; // a payload that breaks the contract of its subject is dead
    pub(crate) mod large; // large payloads lie in the Object Store, through crashes and losses
    mod large_tries; // two relays put one object; dead tries fill the bucket
    pub(crate) mod asleep; // with nothing due a relay leaves its database alone, and comes back
    mod wake; // NOTIFY wakes a sleeping relay and costs a busy one nothing
    mod bursts; // a burst of one ordering key, and a full stream, hold up nobody else
    mod memory; // what a relay holds in memory is bounded, however large the messages are
    pub(crate) mod plans; // queries use their indexes, whatever the statistics say
    mod delayed; // delayed messages: held until their time, moved once and in order
    mod delayed_keys; // who delays messages and who looks at them
    mod losses; // what a stream loses after it has acknowledged it is sent again
    mod retention; // what was settled long ago is deleted, and nothing else
    mod roles; // the relay and a producer as roles of their own
    mod scrapes; // many scrapes of a slow database delay no delivery
    mod rolling; // a rolling deploy: the database is migrated beneath running relays
    mod config; // the configuration file, its documentation, and the streams that it declares
    mod typed_streams; // streams from the command line and the environment
    mod cli; // the program's manners: exit codes, signals, HTTP
    mod databases; // one process for several databases
    mod embedded; // a relay inside another program
    pub(crate) mod documents; // completions, the manual page, log lines in JSON
}

mod nats {
    mod account; // an account with limits of its own
    mod atomic; // atomic batches: whatever breaks them, nothing is lost, doubled or reordered
    mod cluster; // a cluster without a leader, for all streams or for one, and copies in process
    mod denied; // what the relay's NATS user may not do is named, and stops nothing else
    mod fast_ingest; // what nats-server answers to fast ingest, and why the relay does not use it
    mod leaf; // streams of another domain or account, which the JetStream here does not know
    pub(crate) mod login; // every way to log in to NATS, with and without TLS
    mod mute; // messages that nobody answers, while everything else works
    mod refusals; // every refusal of JetStream that can be provoked, and what the relay makes of it
}

mod postgres {
    mod rotation; // the password is replaced in its file
    mod failover; // several addresses of one database
    mod tls; // TLS to PostgreSQL, every sslmode
    pub(crate) mod pgbouncer; // everything through a transaction pooler
}

mod inbox {
    pub(crate) mod support; // the handler and the table that the inbox tests share
    mod message; // one message: claim, replay, failures, and what crashes leave behind
    mod recorded; // recordings of messages that are given up
    mod pipeline; // messages one after another over one connection
    pub(crate) mod batch; // many messages in one transaction
    mod batch_faults; // batches whose transaction is lost
    mod sets; // the messages of a batch taken together
    mod batch_functions; // batches in SQL: nothing is committed before they are settled
    mod looked_up; // copies looked up in SQL: only a key that has ended is answered
    mod redelivered; // batches of messages that were delivered before
    pub(crate) mod consumer; // the consumer runtime on a real stream
    mod large; // large payloads: whole, or later
    mod shutdown; // a consumer that is told to end finishes, or gives back, what it has been given
    mod batch_consumer; // the consumer runtime in batches
    mod pulls; // what a consumer asks of nats-server
    mod hold; // what a consumer holds: for so long and no longer, of this stream and no other
    mod isolation_level; // handlers above READ COMMITTED: what they see, and races that are lost
    mod foreign; // messages of others: CloudEvents, Debezium's, keys from anywhere
    pub(crate) mod order; // order per ordering key, within a process and across processes that die
    pub(crate) mod lines; // strict order behind a dead letter: later messages wait, and follow it
    mod copies; // duplicates that follow each other
    mod replies; // replies whose type has changed
    mod failures; // handlers that say no, fail, panic, lie, or end the process
    mod restarted; // handlers that end their transaction by themselves
    mod secrets; // what an SQL error tells about rows is neither stored nor logged
    mod breaks; // runs that break their connection: the message's fault, or an outage
    mod abandoned; // handlers that are cut short at the delivery limit
    mod failing; // the row of a message that fails, in every mode, and its end
    mod attempts; // what is an attempt, and what is none
    mod snooze; // "not now": snoozes, in every mode
    mod dead_letter_subject; // dead letters on a subject: when, what, and through which crashes
    mod freed; // dead keys that an operator frees while copies arrive
    mod deadlines; // statements of the inbox on a network that swallows them
    mod deferred; // writes that a handler leaves to the commit
    mod locks; // entity locks: two messages about one entity
    mod versions; // optimistic versions: nobody waits, and who was too late runs again
    mod natural; // effects that are idempotent by nature
    mod gate; // the gate in Redis: it turns copies away, and nothing depends on it
    mod kept; // dead letters and abandoned claims: kept long enough, not for ever
    mod retention; // keys are kept as long as they should be, and not for ever
    mod metrics; // what is measured of claims, runs and requests, in every mode
    mod modes; // a scope in one mode, and processes of the other
    mod shadow; // shadow mode, and the causes of duplicates
    mod tables; // the inbox's tables: plans, indexes, types, isolation, what a row counts as
    mod pgbouncer; // every mode through a transaction pooler
    mod functions; // the inbox as SQL functions, by itself and beside the Rust inbox
    mod function_misuse; // every wrong call of the SQL functions is refused
    mod flow; // the test kit runs relay and consumers until all is done
    mod testkit; // the test kit passes sound handlers, and catches the others
}

mod leased {
    pub(crate) mod support; // the provider and the handler that the tests of leased mode share
    mod functions; // leased mode as SQL functions, alone and beside Rust
    mod claims; // leased mode: claims, replays, renewals, what ends as dead
    mod away; // leased mode on a line to PostgreSQL that fails
    pub(crate) mod crash; // leases that end or are stolen; processes that die or hang at any point
    mod effects; // effects under a lease, and what is known of them afterwards
    mod settling; // calls that may still arrive: when an absent effect is called again
    mod stolen; // owners whose claim another has taken over: nothing of theirs is written
    mod gateway; // cashiers that are killed, a gateway that loses answers: paid once
    mod kit; // the test kit with handlers under leases, and with requests over HTTP
}

mod http {
    pub(crate) mod support; // what the tests of the HTTP layer share
    mod requests; // the HTTP layer: replay, refusals, what is stored and what is not
    mod suspended; // a process that is suspended while its handler has written
    mod strangers; // who gets a stored response, and who does not
    mod faults; // the HTTP layer when clients, copies, connections and servers misbehave
    mod leased; // the leased form of the HTTP layer: effects outside the database
    mod retention; // stored responses go after their retention
    mod conformance; // an HTTP client of another language against the layer, bad input included
}

mod saga {
    mod barrier; // every order of actions and compensations, one after another and at once
    mod participant; // handlers behind a barrier, in a real inbox, and what they answer
    pub(crate) mod site; // the order's flow as processes, for the next two
    mod fulfilment; // orders led by sagas, as processes that are killed: their books balance
    mod choreography; // services that react to each other's events, as processes
    pub(crate) mod shop; // the definition that the tests of the orchestrator share
    mod orchestrator; // sagas event by event: forward, backward, early, late, twice
    mod contradiction; // answers that contradict themselves or their saga
    mod behind; // answers that came while nobody led
    mod sets; // answers that are ready at once: one transaction, and one that is wrong
    mod files; // sagas of files, started in SQL
    mod health; // probes and metrics of a process that leads sagas
    mod lead; // the commands that check, test, apply and lead them
    mod stuck; // what waits for an operator: stuck, given up
    mod unled; // sagas that no process leads are found
    mod crossing; // sagas beside large payloads, pauses, turns, fleets, strict order
    mod quarantine; // what puts a saga into quarantine, and gets it out
    mod deaths; // deaths of commands, published by real inboxes: which of them count
    mod again; // business ids that come again, and what is deleted
    mod ends; // ends at the barrier belong to the run that was let through
    mod entry; // the barrier asked outside a transaction, and without an argument
    mod versions; // instances go on with the definition that they began with
    mod crash; // orchestrators that die, or hang, at each statement
    pub(crate) mod suspended; // processes that are suspended in the midst of a transaction
    mod undo; // attempts at one compensation: at most one undoes
    mod rivals; // two orchestrators of the same sagas, in trouble
    mod concurrent; // hundreds at once, also through a pooler
    mod kit; // the test kit leads a definition through crashes, and catches one that is not sound
}

mod drivers {
    pub(crate) mod support; // every driver is put through this
    mod parity; // features of tokio-postgres, over the others
    mod sqlx; // handlers and producers in transactions of sqlx
    mod sea_orm; // the same, of SeaORM
    mod diesel; // the same, of diesel-async
    mod outside; // code outside of handlers: delayed messages, locks, the messages of a transaction
    mod testkit; // the test kit kills handlers over other drivers
}

mod clients {
    mod chaos; // their consumers through kills, cuts at COMMIT and copies
    mod conformance; // one table of messages that each consumer ends alike
    mod contracts; // one table on which the relay and each client's test helpers agree
    mod consumers; // what becomes of the durable that a client pulls from, and of its pulls
    mod copies; // copies are acknowledged together, without a claim; what resembles them is not
    mod crossing; // handlers under leases beside replays, pauses, turns, strict order and stops
    mod effects; // calls of a provider under a lease, through kills: the cashier of each README
    mod endings; // handlers, errors and connections that end in odd ways, each with its verdict
    mod failing; // the rows by which operators see failing messages, from each of these consumers
    mod fleet; // relays and consumers that are killed while lines wait behind dead letters
    mod functions; // a loop that calls the SQL functions, as one of these consumers
    mod inbox; // the Rust inboxes as some of these consumers
    mod killer; // a message that ends its process is found, and given up
    mod letters; // dead letters that are retried: their headers come back as they were
    mod libraries; // producers and handlers through the libraries that teams use
    pub(crate) mod large; // payloads that they fetch from the Object Store
    mod ordering; // the order of a key, in a process and through processes that die
    mod producing; // payloads arrive as their producers gave them, now or at their time
    mod requests; // the same for requests, over the HTTP layer
    mod sagas; // the tutorial on sagas, whose participants are killed
    mod scenarios; // that table
    mod serving; // one table of requests that the HTTP layers of all frameworks answer alike
    mod sites; // the shops behind these layers
    mod testing; // the helpers for users' tests in each language
    mod tracing; // the spans of handlers in each language
    mod taking; // participants of sagas in each language, led by the orchestrator and by hand
    mod told; // the handler of the Rust ones, which does as the payload says
    mod programs; // the programs of the clients' READMEs: each promise, in each language
    mod shop; // the folders with these programs, and what they need to run
    mod waking; // hints after COMMIT, which wake relays that sleep
}

mod operator {
    pub(crate) mod status; // how the outbox stands, and what holds it up
    pub(crate) mod status_nats; // NATS in a status: streams, and what there holds delivery up
    mod consumers; // the consumers behind the streams: those that get no messages, and why
    pub(crate) mod inboxes; // failing, dead and snoozed messages, in a status and in metrics
    mod integrity; // rows that were deleted, rights that were given, settings that hide messages
    pub(crate) mod hostile; // rows that no program writes, anywhere: commands and relays go on
    mod disk; // a full disk of PostgreSQL, which answers questions and takes no writes
    mod findings; // dead letters, settings that differ and rates in a status, and its order
    mod backlog; // how many messages are due: counted, estimated, the same everywhere
    mod trace; // where a message and its steps are
    mod databases; // commands on the databases that a file names
    mod verify; // the log compared with a stream, message by message
    mod resend; // of a stream's loss: what is shown, what is sent, and what the audit says
    mod remedies; // the commands of a finding act on what it counts
    mod edited; // old letters, keys and messages beside an edit
    mod told; // refusals and warnings in words that help
    mod tokens; // a token of a dry run is good for one act
    mod confirmed; // a dry run of sagas and replays shows rows, which a token confirms
    mod canary; // retries in steps of 1, 10, 100 and the rest
    mod canary_faults; // what dies, or acts, beside a canary
    mod undo; // a discard comes back whole, or not at all
    mod edit; // a dead message, or letter, is edited and tried again as a new fact
    mod edit_inbox; // an inbox acts once on a key and its edits, whichever comes first
    mod edit_faults; // edits while inboxes are cut off, large payloads among them
    mod dead; // dead messages: list, show, retry, discard
    mod given_up; // parked messages and replays that an operator gives up
    mod reused; // a key that is used again: each command acts on the message that is meant
    mod replay; // settled messages are sent again: by whom asked, in order, not twice
    pub(crate) mod sagas; // sagas: list, show, retry, skip, abandon; in a trace and in a scrape
    mod dead_letters; // dead letters of inboxes: list, show, retry, discard
    mod failing; // messages that fail in inboxes: list, retry, bury; in a trace
    mod bucket; // what the doctor says of the bucket for large payloads
    pub(crate) mod doctor; // what oncebox doctor finds on real servers, and that it changes nothing
    mod surroundings; // what the doctor says of accounts, work queues, schedules, standbys
    mod republish; // a stream that is fed by another's republish, and refuses
    pub(crate) mod metrics; // the tables of metrics are what scrapes show; what is measured is true
    mod expectations; // messages that no consumer has handled in time
    mod history; // what relays write down of each minute, and the page of it
    mod proof; // what was enqueued in a time, stored and handled
    mod events; // trouble that programs are told of
    mod collector; // an OTLP collector
    mod traces; // spans from producer to consumer, and a collector that is away
    pub(crate) mod telemetry; // a relay and an inbox at work, scraped by a real Prometheus
}

mod why {
    pub(crate) mod support; // the command, and the remedy that it names
    mod outbox; // before a relay sends it: transactions, relays, pauses, locks, delays, the schema
    mod aside; // parked, behind another, dead, discarded
    mod streams; // NATS and its streams: away, missing, closed, full, with losses
    mod consumers; // consumers that get no messages, and those that do
    mod inboxes; // failing, snoozed, leased and dead messages; handlers at work; sagas
    mod around; // the schema, another database, a cluster, the bucket
    mod places; // several messages, several databases, roles, the console
}

mod console {
    pub(crate) mod support; // a console as a process, and requests to it
    mod shown; // an action changes the rows that were shown, and no other
    mod sorted; // each list in the order of a column
    mod look; // what pages and the API show, of several databases, while some are away
    mod browser; // the pages in a real browser
    mod load; // fifty open pages cost a database what one does
    mod access; // who gets in, under which name, and from which page
    mod sagas; // sagas in each order, and one with its data, replies and times
    pub(crate) mod act; // actions: counted first, confirmed, done under a name, stopped
    mod edit; // a message is edited in a form, or by a program
    mod api; // the description of the API: each answer fits it
    pub(crate) mod hostile; // texts that would be markup, rows that no program writes, on all pages
}

mod deploy {
    mod files; // the files of deploy/ agree with the program
    mod systemd; // what systemd is told of the relay: started, alive, stuck, draining
    mod alerts; // alert rules and dashboard on a real Prometheus
    mod rehearsal; // the last release's program and this one's share a database
    mod promql; // what a PromQL expression is about
}

mod dev; // everything on one machine, from an empty directory
mod golden; // help and the description of the API, as committed
mod examples; // every example runs, and says what it should
mod readme; // the SQL and shell blocks of README and docs
mod tidy; // rules of the house that the compiler cannot see
mod harness; // the harness itself: servers that start, restart, and die with their owner
mod proxy; // the fault-injecting proxy keeps its word
mod certificates; // certificates made by the tests that need them
