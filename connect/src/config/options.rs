//! The table of options.

/// The name of the option that declares streams, beside the tables of the file.
pub(super) const STREAM: &str = "stream";

/// One option of the relay.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// Its name, also the flag: `--name`. A unit ends the name.
    pub name: &'static str,
    /// The environment variable.
    pub environment: &'static str,
    /// The default; `None` for options that are unset or required.
    pub default: Option<&'static str>,
    /// Its meaning, with its special values and limits.
    pub help: &'static str,
    /// Given in the environment or a file only, never by a flag: every user of a machine can read
    /// its flags.
    pub is_secret: bool,
}

impl OptionSpec {
    /// Its name in the configuration file.
    #[must_use]
    pub fn key(&self) -> String {
        self.name.replace('-', "_")
    }

    /// The file cannot name a file, and has tables for streams.
    pub(super) fn is_in_file(&self) -> bool {
        !["config", STREAM].contains(&self.name)
    }

    /// Its name in a `[[database]]` table, where `url` is the URL of the database; `None` for the
    /// options of the whole process.
    pub(super) fn key_in_table(&self) -> Option<String> {
        let of_process = OF_PROCESS.contains(&self.name);
        (!of_process).then(|| self.name.strip_prefix("database-").unwrap_or(self.name).replace('-', "_"))
    }

    /// The options that a `[[database]]` table does not take over from the rest of the file once it
    /// gives one of them: they are several ways to say the same.
    pub(super) fn alternatives(&self) -> &'static [&'static str] {
        ALTERNATIVES.iter().find(|names| names.contains(&self.name)).copied().unwrap_or_default()
    }
}

/// Options of the process, which has one of each however many databases it serves.
const OF_PROCESS: [&str; 9] = [
    "config",
    STREAM,
    "http-listen",
    "otlp-endpoint",
    "otlp-metrics-seconds",
    "grace-seconds",
    "stuck-seconds",
    "log",
    "log-format",
];

const ALTERNATIVES: [&[&str]; 3] = [
    &["database-url", "database-url-file"],
    &[
        "nats-user",
        "nats-password",
        "nats-password-file",
        "nats-token",
        "nats-token-file",
        "nats-nkey-seed",
        "nats-nkey-seed-file",
        "nats-credentials",
        "nats-credentials-file",
    ],
    &["nats-domain", "nats-api-prefix"],
];

/// The option of this name.
pub(super) fn find(name: &str) -> Option<&'static OptionSpec> {
    OPTIONS.iter().find(|option| option.name == name)
}

/// The option that has this key in the file.
pub(super) fn at_same_key(key: &str) -> Option<&'static OptionSpec> {
    OPTIONS.iter().find(|option| option.is_in_file() && option.key() == key)
}

/// The option that has this key in a `[[database]]` table.
pub(super) fn in_table(key: &str) -> Option<&'static OptionSpec> {
    OPTIONS.iter().find(|option| option.key_in_table().as_deref() == Some(key))
}

/// The name most like `written`, if any is. Our prefix makes no names alike.
pub(super) fn nearest<'a>(written: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let bare = |name: &'a str| name.trim_start_matches("ONCEBOX_");
    let written = written.trim_start_matches("ONCEBOX_");
    let likeness = names.into_iter().map(|name| (name, strsim::jaro_winkler(written, bare(name))));
    let best = likeness.max_by(|a, b| a.1.total_cmp(&b.1));
    best.filter(|(_, likeness)| *likeness > 0.75).map(|(name, _)| name)
}

/// The end of a mistake about a name that is not known.
pub(super) fn did_you_mean<'a>(written: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    nearest(written, names).map(|near| format!("; did you mean {near}?")).unwrap_or_default()
}

/// Declares options: the documentation of each is its help text.
macro_rules! options {
    (@is_secret option) => { false };
    (@is_secret secret) => { true };
    (@default) => { None };
    (@default $default:literal) => { Some($default) };
    ($($(#[doc = $help:literal])+ $kind:ident $name:literal $environment:literal $(= $default:literal)?;)+) => {
        /// Every option of the relay, in the order of the help text.
        pub const OPTIONS: &[OptionSpec] = &[$(OptionSpec {
            name: $name,
            environment: $environment,
            default: options!(@default $($default)?),
            help: concat!($($help),+).trim_ascii_start(),
            is_secret: options!(@is_secret $kind),
        }),+];
    };
}

options! {
    /// Configuration file, TOML; see docs/configuration.md
    option "config" "ONCEBOX_CONFIG";
    /// PostgreSQL: URL or connection string; required. Of several hosts, the first that takes
    /// writes is used
    option "database-url" "DATABASE_URL";
    /// File with the URL of PostgreSQL, instead of --database-url; it may hold the password
    option "database-url-file" "ONCEBOX_DATABASE_URL_FILE";
    /// File with the password for PostgreSQL, when it is not in the URL; read for each connection
    option "database-password-file" "ONCEBOX_DATABASE_PASSWORD_FILE";
    /// PEM file of the authorities that may sign PostgreSQL's certificate; makes TLS required, as
    /// verify-full
    option "database-ca-file" "ONCEBOX_DATABASE_CA_FILE";
    /// PEM file of the client certificate for PostgreSQL, with its chain; makes TLS required
    option "database-cert-file" "ONCEBOX_DATABASE_CERT_FILE";
    /// PEM file of its private key
    option "database-key-file" "ONCEBOX_DATABASE_KEY_FILE";
    /// NATS: URL of a server, or of several of a cluster with commas between them; required by
    /// `relay`
    option "nats-url" "NATS_URL";
    /// User for NATS, with a password
    option "nats-user" "ONCEBOX_NATS_USER";
    /// Its password
    secret "nats-password" "ONCEBOX_NATS_PASSWORD";
    /// File with its password
    option "nats-password-file" "ONCEBOX_NATS_PASSWORD_FILE";
    /// Token for NATS
    secret "nats-token" "ONCEBOX_NATS_TOKEN";
    /// File with the token for NATS
    option "nats-token-file" "ONCEBOX_NATS_TOKEN_FILE";
    /// Seed of the user's NKey (SU...)
    secret "nats-nkey-seed" "ONCEBOX_NATS_NKEY_SEED";
    /// File with the seed of the user's NKey
    option "nats-nkey-seed-file" "ONCEBOX_NATS_NKEY_SEED_FILE";
    /// Content of a .creds file: the user's JWT and seed
    secret "nats-credentials" "ONCEBOX_NATS_CREDENTIALS";
    /// The .creds file
    option "nats-credentials-file" "ONCEBOX_NATS_CREDENTIALS_FILE";
    /// PEM file of the authorities that may sign the NATS server's certificate; makes TLS required.
    /// Unset: those of this system
    option "nats-ca-file" "ONCEBOX_NATS_CA_FILE";
    /// PEM file of the client certificate for NATS, with its chain; makes TLS required
    option "nats-cert-file" "ONCEBOX_NATS_CERT_FILE";
    /// PEM file of its private key
    option "nats-key-file" "ONCEBOX_NATS_KEY_FILE";
    /// auto: TLS when the server, the URL (tls://) or a file for it asks for it. require: always.
    /// first: always, before the server's greeting (handshake_first of nats-server 2.10.4)
    option "nats-tls" "ONCEBOX_NATS_TLS" = "auto";
    /// Subjects below it carry the acknowledgements; the NATS user must be allowed to subscribe to
    /// PREFIX.>
    option "nats-inbox-prefix" "ONCEBOX_NATS_INBOX_PREFIX" = "_INBOX";
    /// JetStream domain that has the streams, when it is not that of the server: at a leaf node
    option "nats-domain" "ONCEBOX_NATS_DOMAIN";
    /// Subject below which JetStream answers, when another account lets this one ask it, such as
    /// JS.orders.API
    option "nats-api-prefix" "ONCEBOX_NATS_API_PREFIX";
    /// Streams to make when they are missing, beside those of the file: NAME=SUBJECT,SUBJECT;
    /// several with ; between them, such as 'ORDERS=orders.>,payments.>'
    option "stream" "ONCEBOX_STREAM";
    /// PostgreSQL schema that holds the outbox
    option "schema" "ONCEBOX_SCHEMA" = "oncebox";
    /// Workers at most: one does a trickle, more join for a backlog, each with a connection to
    /// PostgreSQL; 1 to 64
    option "workers" "ONCEBOX_WORKERS" = "4";
    /// Lanes that one pass claims at most; 1 to 256
    option "batch-lanes" "ONCEBOX_BATCH_LANES" = "4";
    /// Messages that one pass reads from a lane at most; 1 to 10000
    option "batch-messages" "ONCEBOX_BATCH_MESSAGES" = "1000";
    /// Payload bytes that one pass reads from a lane at most, rounded up to a whole message; 1 to
    /// 67108864
    option "batch-bytes" "ONCEBOX_BATCH_BYTES" = "524288";
    /// Unacknowledged messages of one worker at most, of up to 1 KiB each; fewer while NATS is
    /// slow; 1 to 16384
    option "window" "ONCEBOX_WINDOW" = "2048";
    /// After so long without any acknowledgement JetStream is asked: NATS is away, or only these
    /// messages are not answered and set aside; 1 to 15
    option "ack-timeout-seconds" "ONCEBOX_ACK_TIMEOUT_SECONDS" = "5";
    /// Shortest pause when nothing is due; while messages keep coming, from the beginning of a pass
    /// to that of the next. With 1 or 2 a pass then reads on for 250 ms before it settles. 1 to
    /// 60000
    option "poll-min-milliseconds" "ONCEBOX_POLL_MIN_MILLISECONDS" = "1";
    /// Longest pause when nothing is due; 1 to 60000
    option "poll-max-milliseconds" "ONCEBOX_POLL_MAX_MILLISECONDS" = "250";
    /// Stream that must take every message; JetStream refuses the rest. Unset: any stream
    option "expected-stream" "ONCEBOX_EXPECTED_STREAM";
    /// Source of the CloudEvents that messages are published as, a URI such as /shop: in binary
    /// mode, with headers ce-id (the key), ce-source, ce-type (the subject), ce-time and
    /// ce-specversion. Unset: no such headers
    option "cloud-events-source" "ONCEBOX_CLOUD_EVENTS_SOURCE";
    /// Bucket of the NATS Object Store for large payloads: their messages carry a reference, and
    /// the inbox fetches them. It is made when missing, with the longest max_age of the declared
    /// streams; a [[stream]] of the name OBJ_BUCKET declares it otherwise. Unset: payloads travel
    /// in their messages
    option "object-store" "ONCEBOX_OBJECT_STORE";
    /// A payload of more bytes goes to the bucket, if one is named; 1 to 8388608
    option "large-payload-bytes" "ONCEBOX_LARGE_PAYLOAD_BYTES" = "524288";
    /// File of contracts, JSON: a message whose payload breaks the schema of its subject is dead at
    /// once. Read at the start; see docs/contracts.md. Unset: every payload is sent
    option "contracts" "ONCEBOX_CONTRACTS";
    /// A message that no stream takes is dead after so many attempts (1 s apart, doubling to 5
    /// min); 1 to 1000000
    option "attempts-max" "ONCEBOX_ATTEMPTS_MAX" = "100";
    /// What a stream lost after it had acknowledged it. auto: what is missing at its end is sent
    /// again; of a stream that was made anew, a work queue, or one that can prove nothing, it is
    /// reported. resend: it is always sent again. report: `oncebox outbox resend` sends it again
    option "on-loss" "ONCEBOX_ON_LOSS" = "auto";
    /// Whether a dead message holds back its ordering key (block) or lets it go on (skip)
    option "on-dead" "ONCEBOX_ON_DEAD" = "block";
    /// How long settled messages are kept: 1m to 3650d, such as 36h or 7d; forever keeps them all
    option "retention" "ONCEBOX_RETENTION" = "7d";
    /// With nothing due for so long, and nothing due soon, the relay closes its connections to the
    /// database and sleeps, so that a serverless database may be suspended: 1s to 1d, such as 5m;
    /// off never
    option "sleep-after" "ONCEBOX_SLEEP_AFTER" = "off";
    /// A sleeping relay wakes after so long at the latest, and looks for messages that no hint
    /// announced: 1m to 1d
    option "sleep-at-most" "ONCEBOX_SLEEP_AT_MOST" = "15m";
    /// How long a business process of many messages takes at most, compensations included: 1m to
    /// 3650d. `oncebox doctor` names inboxes that forget keys sooner; nothing else uses it. Unset:
    /// there are none
    option "saga-lifetime" "ONCEBOX_SAGA_LIFETIME";
    /// IP:PORT of /livez, /readyz and /metrics; port 0 takes a free one; off disables
    option "http-listen" "ONCEBOX_HTTP_LISTEN" = "127.0.0.1:9464";
    /// OpenTelemetry collector that takes a span for each publish of a traced message, and the
    /// metrics, as OTLP over HTTP, such as http://127.0.0.1:4318; they go to /v1/traces and
    /// /v1/metrics below it. Unset: neither is sent
    option "otlp-endpoint" "ONCEBOX_OTLP_ENDPOINT";
    /// The pause between two reports of the metrics to that collector; 0 to 3600, 0 = none
    option "otlp-metrics-seconds" "ONCEBOX_OTLP_METRICS_SECONDS" = "60";
    /// File that gets a line for each step of each pass, with ids and without payloads, for the
    /// checker of docs/correctness.md; about a kilobyte for ten messages, without a limit. Unset:
    /// there is none
    option "trace-file" "ONCEBOX_TRACE_FILE";
    /// How long SIGTERM waits for passes under way; 0 to 600
    option "grace-seconds" "ONCEBOX_GRACE_SECONDS" = "20";
    /// A worker that gets no further for so long is stuck: /livez fails, and systemd's watchdog is
    /// fed no more; 10 to 3600. Below 60 a server that hangs may be taken for it
    option "stuck-seconds" "ONCEBOX_STUCK_SECONDS" = "180";
    /// Log filter: error, warn, info, debug or trace, also per module
    option "log" "ONCEBOX_LOG" = "info,async_nats=off";
    /// How log lines look: text for people, json for programs, an object per line
    option "log-format" "ONCEBOX_LOG_FORMAT" = "text";
}
