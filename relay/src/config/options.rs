//! The table of options.

/// One option of the relay.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// Its name, also the flag: `--name`. A unit ends the name.
    pub name: &'static str,
    /// The environment variable.
    pub environment: &'static str,
    /// The default; `None` for options that are unset or required.
    pub default: Option<&'static str>,
    /// What it means, with its special values and limits.
    pub help: &'static str,
}

const fn option(
    name: &'static str,
    environment: &'static str,
    default: Option<&'static str>,
    help: &'static str,
) -> OptionSpec {
    OptionSpec { name, environment, default, help }
}

/// Every option of the relay, in the order of the help text.
pub const OPTIONS: &[OptionSpec] = &[
    option("database-url", "DATABASE_URL", None, "PostgreSQL: URL or connection string; required"),
    option("nats-url", "NATS_URL", None, "NATS: URL of a server; required by `relay`"),
    option("schema", "ONCEBOX_SCHEMA", Some("oncebox"), "PostgreSQL schema that holds the outbox"),
    option("workers", "ONCEBOX_WORKERS", Some("4"), "Workers, each with a connection to PostgreSQL; 1 to 64"),
    option("batch-lanes", "ONCEBOX_BATCH_LANES", Some("4"), "Lanes that one pass claims at most; 1 to 256"),
    option(
        "batch-messages",
        "ONCEBOX_BATCH_MESSAGES",
        Some("1000"),
        "Messages that one pass reads from a lane at most; 1 to 10000",
    ),
    option(
        "batch-bytes",
        "ONCEBOX_BATCH_BYTES",
        Some("524288"),
        "Payload bytes that one pass reads from a lane at most, rounded up to a whole message; 1 to 67108864",
    ),
    option(
        "window",
        "ONCEBOX_WINDOW",
        Some("2048"),
        "Unacknowledged messages of one worker at most; 1 to 16384",
    ),
    option(
        "ack-timeout-seconds",
        "ONCEBOX_ACK_TIMEOUT_SECONDS",
        Some("5"),
        "NATS counts as away after so long without any acknowledgement; 1 to 15",
    ),
    option(
        "poll-min-milliseconds",
        "ONCEBOX_POLL_MIN_MILLISECONDS",
        Some("3"),
        "Pause after a pass that found something but not a full batch; 1 to 60000",
    ),
    option(
        "poll-max-milliseconds",
        "ONCEBOX_POLL_MAX_MILLISECONDS",
        Some("250"),
        "Longest pause when nothing is due; 1 to 60000",
    ),
    option(
        "expected-stream",
        "ONCEBOX_EXPECTED_STREAM",
        None,
        "Stream that must take every message; JetStream refuses the rest. Unset: any stream",
    ),
    option(
        "attempts-max",
        "ONCEBOX_ATTEMPTS_MAX",
        Some("100"),
        "A message that no stream takes is dead after so many attempts (1 s apart, doubling to 5 min); 1 to 1000000",
    ),
    option(
        "on-dead",
        "ONCEBOX_ON_DEAD",
        Some("block"),
        "Whether a dead message holds back its ordering key (block) or lets it go on (skip)",
    ),
    option(
        "retention",
        "ONCEBOX_RETENTION",
        Some("7d"),
        "How long settled messages are kept: 1m to 3650d, such as 36h or 7d; forever keeps them all",
    ),
    option(
        "http-listen",
        "ONCEBOX_HTTP_LISTEN",
        Some("127.0.0.1:9464"),
        "IP:PORT of /livez, /readyz and /metrics; port 0 takes a free one; off disables",
    ),
    option(
        "grace-seconds",
        "ONCEBOX_GRACE_SECONDS",
        Some("20"),
        "How long SIGTERM waits for passes under way; 0 to 600",
    ),
    option(
        "log",
        "ONCEBOX_LOG",
        Some("info,async_nats=off"),
        "Log filter: error, warn, info, debug or trace, also per module",
    ),
];
