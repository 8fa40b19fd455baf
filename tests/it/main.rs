//! Integration tests on real PostgreSQL and real nats-server.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics; helpers of tests are tests")]

mod alerts; // alert rules and dashboard on a real Prometheus
mod certificates; // certificates made by the tests that need them
mod deploy; // the files of deploy/ agree with the program
mod doctor; // what oncebox doctor finds on real servers, and that it changes nothing
mod enqueue; // enqueue in SQL: once per key, in the caller's transaction, alone and in bulk
mod examples; // every example runs, and says what it should
mod gateway; // cashiers that are killed and suspended, and a gateway that loses answers: every payment once
mod harness; // the harness itself: servers that start, restart, and die with their owner
mod http; // the HTTP layer: replay, refusals, what is stored and what is not
mod http_conformance; // an HTTP client of another language against the layer, bad input included
mod http_faults; // the HTTP layer when clients, copies, connections and servers misbehave
mod http_leased; // the leased form of the HTTP layer: effects outside the database
mod http_retention; // stored responses go after their retention
mod http_support; // the service, the client and the table that the tests of the HTTP layer share
mod inbox; // one message through the inbox: claim, replay, failures, and what crashes leave behind
mod inbox_abandoned; // handlers that are cut short at the delivery limit
mod inbox_attempts; // what is an attempt: not waiting, not a delivery that nobody ran, not a neighbour that kills
mod inbox_batch; // many messages in one transaction
mod inbox_batch_consumer; // the consumer runtime in batches
mod inbox_batch_faults; // batches whose transaction is lost
mod inbox_breaks; // runs that break their connection: the message's fault, or an outage
mod inbox_consumer; // the consumer runtime on a real stream
mod inbox_copies; // duplicates that follow each other
mod inbox_dead; // dead letters of inboxes: list, show, retry, discard
mod inbox_deadlines; // statements of the inbox on a network that swallows them
mod inbox_deferred; // writes that a handler leaves to the commit
mod inbox_each; // messages one after another over one connection
mod inbox_failures; // handlers that say no, fail, panic, lie, or end the process
mod inbox_freed; // dead keys that an operator frees while copies arrive
mod inbox_gate; // the gate in Redis: it turns copies away, and nothing depends on it
mod inbox_hold; // what a consumer holds: for so long and no longer, of this stream and no other
mod inbox_kept; // dead letters, abandoned claims and what they remember: kept long enough, and not for ever
mod inbox_letters; // dead letters on a subject: when, what, and through which crashes
mod inbox_locks; // entity locks: two messages about one entity
mod inbox_metrics; // what is measured of claims, runs and requests, in every mode
mod inbox_modes; // a scope in one mode, and processes of the other
mod inbox_order; // order per ordering key, within a process and across processes that die
mod inbox_parks; // "not now": parks, in every mode
mod inbox_pgbouncer; // every mode through a transaction pooler
mod inbox_pulls; // what a consumer asks of nats-server
mod inbox_replies; // replies whose type has changed
mod inbox_retention; // keys are kept as long as they should be, and not for ever
mod inbox_sets; // the messages of a batch taken together
mod inbox_shadow; // shadow mode, and the causes of duplicates
mod inbox_support; // the handler and the table that the inbox tests share
mod inbox_tables; // the inbox's tables: plans, indexes, types, isolation, what a row counts as
mod inbox_versions; // optimistic versions: nobody waits, and who was too late runs again
mod keys; // keys, subjects, headers, payloads: SQL and Rust judge alike; every refusal names field and limit
mod leased; // leased mode: claims, replays, renewals, what ends as dead
mod leased_away; // leased mode on a line to PostgreSQL that fails
mod leased_crash; // leases that end or are stolen; processes that die or hang at any point
mod leased_effects; // effects under a lease, and what is known of them afterwards
mod leased_stolen; // owners whose claim another has taken over: nothing of theirs is written
mod leased_support; // the provider and the handler that the tests of leased mode share
mod metrics; // the tables of metrics are what scrapes show; what is measured is true
mod migrate; // migrations: many at once, any schema, any user; versions; the committed dump
mod migrate_beside; // migrations of older databases, beside whoever uses them
mod nats_cluster; // a cluster without a leader, for all streams or for one, and copies in process
mod nats_denied; // what the relay's NATS user may not do is named, and stops nothing else
mod nats_login; // every way to log in to NATS, with and without TLS
mod nats_mute; // messages that nobody answers, while everything else works
mod nats_refusals; // every refusal of JetStream that can be provoked, and what the relay makes of it
mod natural; // effects that are idempotent by nature
mod operator_dead; // dead messages: list, show, retry, discard
mod operator_findings; // dead letters, settings that differ and rates in a status, and its order
mod operator_given_up; // parked messages and replays that an operator gives up
mod operator_replay; // settled messages are sent again: by whom asked, in order, not twice
mod operator_status; // how the outbox stands, and what holds it up
mod operator_status_nats; // the part of NATS in a status: streams, and what there holds delivery up
mod operator_trace; // where a message and its steps are
mod outbox; // the outbox crate: what a producer may rely on
mod pgbouncer; // everything through a transaction pooler
mod postgres_failover; // several addresses of one database
mod postgres_tls; // TLS to PostgreSQL, every sslmode
mod promql; // what a PromQL expression is about
mod proxy; // the fault-injecting proxy keeps its word
mod readme; // the README's SQL and shell blocks
mod relay_backlog; // how many messages are due: counted, estimated, the same everywhere
mod relay_cli; // the program's manners: exit codes, signals, HTTP
mod relay_config; // the configuration file, its documentation, and the streams that it declares
mod relay_crash; // a relay dies between any two steps, or never learns whether it committed
mod relay_documents; // completions, the manual page, log lines in JSON
mod relay_held; // transactions left open delay nobody else
mod relay_ids; // what a stream takes for a copy is one
mod relay_kit; // what the relay's tests share
mod relay_load; // killed under load, cut off from NATS at random, two at once
mod relay_low_ids; // ids of new messages that stand below the cursors
mod relay_memory; // what a relay holds in memory is bounded, however large the messages are
mod relay_outage; // servers go away and come back
mod relay_parked; // messages that cannot be published are set aside
mod relay_parked_load; // a hundred thousand of them slow nothing else
mod relay_plans; // queries use their indexes, whatever the statistics say
mod relay_previous; // the program of the version before, beside this one: a rolling deploy
mod relay_process; // the program as a process
mod relay_restore; // a dump restored into another cluster
mod relay_resume; // how soon a relay goes on when a server is back
mod relay_retention; // what was settled long ago is deleted, and nothing else
mod relay_roles; // the relay and a producer as roles of their own
mod relay_scrapes; // many scrapes of a slow database delay no delivery
mod relay_slow; // a broker behind a narrow or a long line: slower, but never away
mod relay_two_phase; // producers with two-phase commit
mod relay_wake; // NOTIFY wakes a sleeping relay and costs a busy one nothing
mod role_names; // the names of roles, each database's own
mod roles; // least privilege, and functions that cannot be hijacked
mod systemd; // what systemd is told of the relay: started, alive, stuck, draining
mod telemetry_kit; // a relay and an inbox at work, scraped by a real Prometheus
mod testkit; // the test kit passes sound handlers, and catches the others
mod tidy; // rules of the house that the compiler cannot see
mod torture; // producers and relays at random, a verdict over the whole stream
mod traces; // spans from the producer over the relay to the consumer, and a collector that is away
