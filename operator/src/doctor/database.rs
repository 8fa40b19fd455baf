//! Conclusions from the facts about PostgreSQL.

use oncebox_connect::words::counted;
use oncebox_relay::facts::{Explained, Fault, LowIds};

use super::Severity::{Note, Problem, Warning};
use super::{DatabaseFacts, Lacking};
use super::{Diagnosis, Plan};
use crate::relay_settings::RelaySettings;

const OLDEST: i32 = 15;
const NEWEST_TESTED: i32 = 18;
/// A segment of the write-ahead log: a standby that applies all the time does not lag so far.
const UNAPPLIED_BYTES: i64 = 16 << 20;

pub(super) fn check(plan: &Plan, facts: &DatabaseFacts, found: &mut Vec<Diagnosis>) {
    found.extend(version(facts));
    found.extend(writable(facts));
    found.extend(facts.full_disk.as_deref().map(full));
    found.extend(schema(facts));
    found.extend(lacking(facts));
    found.extend(roles(facts));
    found.extend(powers(facts));
    found.extend(facts.faults.iter().map(|fault| faulty(facts, fault)));
    found.extend(low_ids(facts));
    found.extend(durable(facts));
    found.extend(pooled(facts));
    found.extend(unconfirmed(facts));
    found.extend(slowly_applied(facts));
    found.extend(deaf(plan, facts));
    found.extend(different(facts));
    found.extend(facts.sagas_unled.iter().map(|unled| {
        Warning.of(
            "saga-leader",
            unled.what(),
            "nothing takes their answers or watches their deadlines",
            unled.remedy(),
        )
    }));
    found.extend(facts.unasked.iter().map(|problem| {
        Warning.of(
            "unasked",
            format!("PostgreSQL could not be asked: {problem}"),
            "this part was not checked",
            "mend what the error says, or run doctor with the relay's own role, and look again",
        )
    }));
}

fn different(facts: &DatabaseFacts) -> Option<Diagnosis> {
    let what = RelaySettings::difference(&facts.relay_settings)?;
    Some(Warning.of(
        "relay-settings",
        what,
        "the shortest retention deletes what others would keep; what waits behind a dead message waits or goes on by chance",
        "start all relays of this schema with the same --retention and --on-dead; a relay that has ended is counted for \
         three minutes",
    ))
}

fn version(facts: &DatabaseFacts) -> Option<Diagnosis> {
    let major = facts.version_number / 10_000;
    // 0: could not be asked, which is said.
    if major == 0 || (OLDEST..=NEWEST_TESTED).contains(&major) {
        return None;
    }
    let what = format!("PostgreSQL is {}; {OLDEST} to {NEWEST_TESTED} are supported", facts.version);
    let remedy = "use a supported version";
    Some(if major < OLDEST {
        Problem.of(
            "postgres-version",
            what,
            "the schema and the relay's statements do not work there",
            remedy,
        )
    } else {
        Warning.of("postgres-version", what, "nobody has tested it", "see whether there is a newer Oncebox")
    })
}

fn writable(facts: &DatabaseFacts) -> Option<Diagnosis> {
    facts.is_read_only.then(|| {
        Problem.of(
            "read-only",
            format!(
                "{} takes no writes: it is a standby, or the role's transactions are read only",
                facts.target
            ),
            "no relay can work there",
            "give the address of the primary, or of all servers: postgres://relay@one,two/orders; and see \
             default_transaction_read_only of the role and the database",
        )
    })
}

fn full(words: &str) -> Diagnosis {
    Problem.of(
        "disk-full",
        words,
        "producers cannot enqueue, and relays cannot write how far they came: nothing is relayed",
        "make room on the disk of PostgreSQL; producers and relays go on by themselves",
    )
}

fn schema(facts: &DatabaseFacts) -> Option<Diagnosis> {
    let problem = facts.schema_problem.as_ref()?;
    Some(Problem.of(
        "schema-version",
        problem.clone(),
        "relays, producers and commands of this version refuse to work",
        "run `oncebox migrate` of this version as the owner of the schema; or use the Oncebox that migrated it last",
    ))
}

fn lacking(facts: &DatabaseFacts) -> impl Iterator<Item = Diagnosis> {
    facts.lacking.iter().map(|Lacking { role, privileges }| {
        Problem.of(
            "privileges",
            format!("the role {role} lacks {privileges}"),
            "statements of a relay with this role fail: it relays nothing",
            format!(
                "GRANT \"{}_relay\" TO \"{role}\"; when that role does not exist, have an administrator create it and run \
                 `oncebox migrate` again",
                facts.role_prefix
            ),
        )
    })
}

fn faulty(facts: &DatabaseFacts, fault: &Fault) -> Diagnosis {
    let Explained { what, consequence, remedy } = fault.explained(&facts.schema);
    let severity = match fault.fault {
        "notify-queue" | "leader" | "turn" | "moved" => Warning,
        _ => Problem,
    };
    severity.of(fault.fault, what, consequence, remedy)
}

fn low_ids(facts: &DatabaseFacts) -> Option<Diagnosis> {
    let LowIds { stood_at, needed } = facts.low_ids?;
    Some(Problem.of(
        "message-ids",
        format!(
            "the ids of new messages stand at {stood_at}, below {needed}, which messages and cursors have reached"
        ),
        "new messages may count as settled and are not sent, or are refused because their ids are taken; a database that was \
         restored or replicated without its sequences is like that, or one whose sequence was restarted",
        format!(
            "run a relay: it raises the ids and sends what was enqueued meanwhile. While transactions that have enqueued stay \
             open it cannot: end them, see pg_stat_activity and pg_prepared_xacts. Do not raise {}.message_id_seq by hand",
            facts.schema
        ),
    ))
}

fn roles(facts: &DatabaseFacts) -> Option<Diagnosis> {
    (facts.schema_problem.is_none() && !facts.missing_roles.is_empty()).then(|| {
        let create = facts.missing_roles.iter().map(|role| format!("CREATE ROLE \"{role}\" NOLOGIN"));
        Warning.of(
            "roles",
            format!("there is no role {}", facts.missing_roles.join(", ")),
            "the programs that it is for can only work with the rights of the schema's owner or a superuser; whoever \
             migrated may not create roles",
            format!(
                "have an administrator run `{}`, then run `oncebox migrate` again, which grants them what they need",
                create.collect::<Vec<_>>().join("; ")
            ),
        )
    })
}

fn powers(facts: &DatabaseFacts) -> Option<Diagnosis> {
    let remedy = format!(
        "CREATE ROLE relay LOGIN IN ROLE \"{}_relay\", set its password (`\\password relay` in psql), and give the relay \
         that user",
        facts.role_prefix
    );
    if facts.is_superuser {
        let what = format!("the role {} is a superuser", facts.role_name);
        let consequence =
            "whoever gets hold of the relay's login owns the whole cluster, business tables too";
        return Some(Warning.of("superuser", what, consequence, remedy));
    }
    if facts.readable_tables == 0 {
        return None;
    }
    let examples = facts.readable_examples.join(", ");
    let more = facts.readable_tables - i64::try_from(facts.readable_examples.len()).unwrap_or(i64::MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Some(Warning.of(
        "business-tables",
        format!("the role {} can read tables outside the outbox: {examples}{more}", facts.role_name),
        "whoever gets hold of the relay's login reads them too; the relay needs none of them",
        remedy,
    ))
}

fn durable(facts: &DatabaseFacts) -> Option<Diagnosis> {
    (!facts.fsyncs && facts.version_number > 0).then(|| {
        Warning.of(
            "fsync",
            "PostgreSQL runs with fsync = off",
            "a power failure can lose or damage committed messages, and all other data",
            "set fsync = on, everywhere but in tests",
        )
    })
}

/// A commit waits for a number of standbys, and they are not there.
fn unconfirmed(facts: &DatabaseFacts) -> Option<Diagnosis> {
    let names = &facts.synchronous_standby_names;
    let is_awaited = !names.is_empty() && !matches!(&*facts.synchronous_commit, "local" | "off");
    let there = facts.synchronous_standbys.filter(|there| is_awaited && *there < facts.awaited_standbys)?;
    Some(Problem.of(
        "standbys",
        format!(
            "each commit waits for {} of synchronous_standby_names = '{names}', and {there} of them {} connected",
            counted(facts.awaited_standbys.unsigned_abs(), "standby"),
            if there == 1 { "is" } else { "are" },
        ),
        "producers, relays and consumers hang in COMMIT until another one connects",
        "start the standby, with its application_name as the list has it; or have commits wait for none: \
         `ALTER SYSTEM RESET synchronous_standby_names`, then `SELECT pg_reload_conf()`",
    ))
}

fn slowly_applied(facts: &DatabaseFacts) -> Option<Diagnosis> {
    let behind = facts.unapplied_bytes.filter(|bytes| *bytes >= UNAPPLIED_BYTES)?;
    (facts.synchronous_commit == "remote_apply").then(|| {
        Warning.of(
            "standbys",
            format!(
                "synchronous_commit is remote_apply, and the slowest standby has {} MiB still to apply",
                behind >> 20
            ),
            "each commit waits until it has: enqueuing, relaying and consuming are as slow as that standby",
            "see what it does: queries that its max_standby_streaming_delay lets go first, a slow disk, a replay that is \
             paused (pg_get_wal_replay_pause_state()); or use synchronous_commit = on",
        )
    })
}

fn pooled(facts: &DatabaseFacts) -> Option<Diagnosis> {
    if let Some(problem) = &facts.transactions_refused {
        return Some(Problem.of(
            "pooler",
            format!("a pooler refuses transactions: {problem}"),
            "no relay, producer or inbox can work through it: each writes in a transaction",
            "set pool_mode = transaction (or session) in PgBouncer for this database, or give PostgreSQL's own address",
        ));
    }
    facts.is_pooled.then(|| {
        Note.of(
            "pooler",
            "a transaction pooler (PgBouncer, say) stands before PostgreSQL",
            "the relay works: it polls instead of listening, and has each statement planned anew, which costs a little \
             latency and processor time; client programs that prepare statements need care",
            "for the least latency give the relay PostgreSQL's own address; for inbox and outbox crates see \
             \"Behind a pooler\" in docs/configuration.md",
        )
    })
}

fn deaf(plan: &Plan, facts: &DatabaseFacts) -> Option<Diagnosis> {
    (facts.hears == Some(false)).then(|| {
        Note.of(
            "listen",
            "LISTEN does not work here",
            format!(
                "after a pause a message waits for the next poll, {:?} at most, jitter apart",
                plan.poll_max
            ),
            "none is needed; PostgreSQL's own address instead of a pooler's wakes the relay at once, and a lower \
             --poll-max-milliseconds polls more often",
        )
    })
}
