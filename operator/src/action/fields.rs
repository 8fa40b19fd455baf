//! The options of actions and lists, each stated once.

/// An option of a command, which is a field of a form and of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// The name of its value in help texts; empty for one that is given or not.
    pub value: &'static str,
    help: &'static str,
}

impl Field {
    const fn new(name: &'static str, value: &'static str, help: &'static str) -> Self {
        Self { name, value, help }
    }

    /// Its effect, on these things, such as `Messages`.
    #[must_use]
    pub fn help(&self, things: &str) -> String {
        self.help.replace("{}", things)
    }
}

const ID: Field = Field::new("id", "ID", "The message with this id, as the list shows it");
const LETTER: Field = Field::new("id", "ID", "The letter with this id");
const FAILING: Field =
    Field::new("id", "ID", "The message with this id: a JSON array, from the list with --json");
const KEY: Field = Field::new("key", "KEY", "The message with this key");
const KEYS: Field = Field::new("key", "KEY", "{} with this key, of any scope and tenant");
const SAGA: Field = Field::new("key", "KEY", "The saga with this key");
const NO_KEY: Field = Field::new("no-key", "", "{} of messages that had no valid key");
const SCOPE: Field = Field::new("scope", "SCOPE", "{} of this consumer: service:handler");
const SUBJECT: Field =
    Field::new("subject", "PATTERN", "{} with this subject; * is one token, a last > one or more");
const REASON: Field = Field::new("reason", "TEXT", "{} whose reason contains this text, upper or lower case");
const REASON_IS: Field =
    Field::new("reason-is", "LINE", "{} whose reason has exactly this first line, which may be empty");
const SUBJECT_IS: Field =
    Field::new("subject-is", "SUBJECT", "{} with exactly this subject, which is no pattern");
const ORDERING_KEY: Field = Field::new("ordering-key", "KEY", "{} with this ordering key");
const REQUEST: Field = Field::new("request", "NAME", "Replays that were asked for under this name");
const TYPE: Field = Field::new("type", "NAME", "{} of this definition");
const STATE: Field = Field::new("state", "STATE", "{} in this state");
const SINCE: Field = Field::new("since", "TIME", "{} enqueued then or later");
const UNTIL: Field = Field::new("until", "TIME", "{} enqueued earlier");
const FROM_ID: Field = Field::new("from-id", "ID", "{} with this id (header Oncebox-Id) or a higher one");
const TO_ID: Field = Field::new("to-id", "ID", "{} with this id or a lower one");
const STREAM: Field = Field::new(
    "stream",
    "NAME",
    "{} with the subjects that this stream has now; hub.NAME is one of the domain hub",
);
const LOST_OF: Field = Field::new("stream", "NAME", "The stream that a relay reported; see `oncebox status`");
const AUDIT: Field =
    Field::new("id", "ID", "A row of the discard, or edit, in the audit; the command prints it");
const CANARY_ID: Field = Field::new("id", "ID", "The canary, from the list");

pub(super) const OF_MESSAGES: &[Field] = &[ID, KEY, SUBJECT, REASON, REASON_IS, SUBJECT_IS, ORDERING_KEY];
pub(super) const OF_REPLAYS: &[Field] =
    &[ID, KEY, SUBJECT, REASON, REASON_IS, SUBJECT_IS, ORDERING_KEY, REQUEST];
pub(super) const OF_LETTERS: &[Field] =
    &[LETTER, KEYS, NO_KEY, SCOPE, SUBJECT, REASON, REASON_IS, SUBJECT_IS];
pub(super) const OF_FAILING: &[Field] = &[FAILING, KEYS, SCOPE, SUBJECT, REASON, REASON_IS, SUBJECT_IS];
pub(super) const OF_DELAYED: &[Field] = &[KEY, SUBJECT, ORDERING_KEY];
pub(super) const OF_SAGAS: &[Field] = &[SAGA, TYPE, STATE];
pub(super) const OF_SETTLED: &[Field] = &[KEY, SUBJECT, SINCE, UNTIL, FROM_ID, TO_ID];
pub(super) const OF_LOSSES: &[Field] = &[LOST_OF];
pub(super) const OF_PAUSES: &[Field] = &[SUBJECT, STREAM, ORDERING_KEY];
pub(super) const OF_AUDIT: &[Field] = &[AUDIT];
pub(super) const OF_CANARIES: &[Field] = &[CANARY_ID];

pub(super) const ONE_KEY: &[Field] = &[Field::new("key", "KEY", "The message's key")];
pub(super) const ONE_LETTER: &[Field] = &[Field::new("id", "ID", "The letter's id, from the list")];

/// Fields that say how, not which.
pub(super) const ONE_STEP: &[Field] = &[Field::new("step", "STEP", "Only this step")];
pub(super) const STEP: &[Field] = &[
    Field::new("step", "STEP", "The step"),
    Field::new("reply", "JSON", "The reply that its participant would have sent, where later steps need it"),
];
pub(super) const ASKED_AS: &[Field] = &[Field::new(
    "request",
    "NAME",
    "Leave out messages that were asked for under this name before, to go on after a failure",
)];
pub(super) const SETTLED_SINCE: &[Field] =
    &[Field::new("since", "TIME", "Not what was settled long before this time")];
pub(super) const LASTS: &[Field] = &[
    Field::new("for", "TIME", "End by itself after this time: 90s, 15m, 2h"),
    Field::new("unseen", "", "Also if no recent message has such a subject"),
];
pub(super) const CANARY: &[Field] = &[Field::new(
    "canary",
    "",
    "Leave it to the relays to retry one, then 10, 100 and the rest, and to stop at the first that fails again",
)];
pub(super) const CHANGE: &[Field] = &[
    Field::new("payload", "FILE", "Its new payload, the bytes of this file"),
    Field::new("header", "NAME=VALUE", "A header with its new value; may be given several times"),
    Field::new("remove-header", "NAME", "A header that goes; may be given several times"),
];
