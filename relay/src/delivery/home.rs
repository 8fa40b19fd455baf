//! Whether the database that a relay has reached is the home of its outbox, or a copy of it: pure.
//!
//! Relays note where they serve an outbox. Three things can be told from that note alone: the place
//! is the same, which a standby that was promoted is too; the place is another one, and the
//! original is there or has another name, so this is a copy; or it may be either, as after a dump
//! was restored in place or `pg_upgrade`. A relay also asks over NATS whether another one serves
//! the outbox in a database that does not know this relay's row. That separates even copies of
//! files, which look alike. Of two databases the one that was noted later stays silent, so a copy
//! does not silence its original; but the one of which an operator said last that the original is
//! there goes before all others.

use std::time::Duration;

/// A database that may be the home is it when no relay has served the original for this time.
pub(crate) const QUIET: Duration = Duration::from_secs(15);
/// In the noted place, a relay that does not answer is no reason to wait for longer: its database
/// may be the one that has just failed over to this.
pub(crate) const UNANSWERED_MAX: Duration = Duration::from_secs(3);
/// A rival that was there for this time is no leftover of a failover: an operator must decide.
pub(crate) const LASTING: Duration = Duration::from_secs(60);

/// The note's statement about this database: `home_here` in schema/migrations/0004_operations.sql.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Noted {
    /// No relay has served the outbox yet.
    New,
    Here,
    /// Perhaps, in another place.
    Moved,
    Copy,
}

/// Another database in which a relay served this outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rival {
    pub(crate) address: String,
    /// How long ago it was last seen, and for how long it had been.
    pub(crate) seen: Duration,
    pub(crate) lasted: Duration,
}

/// The facts from the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) noted: Noted,
    /// The noted place, for people.
    pub(crate) place: String,
    /// This relay knows the database by the noted address, which is no machine's own.
    pub(crate) is_same_address: bool,
    pub(crate) rival: Option<Rival>,
}

/// The answers over NATS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Not asked.
    Nothing,
    /// No relay serves the outbox.
    Nobody,
    /// Others do, in this database.
    Ours,
    /// Relays are there that could not tell.
    Unanswered,
    /// NATS does not let the relay ask.
    Denied,
    /// A relay serves it in another database, whose address this is.
    Another { address: String, is_senior: bool },
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Home,
    /// Ask again.
    Wait,
    Silent(Why),
}

/// Why a relay sends nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Of this place.
    Copy(String),
    /// It may be a copy of this place: the relay asks whether others serve it.
    Asking(String),
    /// In this place another relay serves the outbox.
    Rival(String),
    /// It may be a copy of this place, and NATS does not let the relay ask.
    Denied(String),
}

/// `asked` is for how long the relay has asked, and `quiet` for how long it has had no answer.
pub(crate) fn judge(look: &Look, heard: &Heard, asked: Duration, quiet: Duration) -> Verdict {
    let silent = |why: fn(String) -> Why, place: &str| Verdict::Silent(why(place.to_owned()));
    if look.noted == Noted::Copy {
        return silent(Why::Copy, &look.place);
    }
    match (heard, &look.rival) {
        (Heard::Another { address, is_senior: true }, _) => return silent(Why::Rival, address),
        (_, Some(rival)) if rival.lasted >= LASTING || rival.seen < LASTING => {
            return silent(Why::Rival, &rival.address);
        }
        _ => {}
    }
    match (look.noted, heard) {
        (Noted::New, _) | (_, Heard::Ours) => Verdict::Home,
        (Noted::Here, Heard::Nothing) => Verdict::Wait,
        (Noted::Here, Heard::Unanswered) if asked < UNANSWERED_MAX => Verdict::Wait,
        (Noted::Here, _) => Verdict::Home,
        (_, Heard::Denied) if look.is_same_address => Verdict::Home,
        (_, Heard::Denied) => silent(Why::Denied, &look.place),
        (_, Heard::Nobody) if quiet >= QUIET => Verdict::Home,
        _ => Verdict::Wait,
    }
}

impl Why {
    /// In words, with the remedy.
    pub(crate) fn explained(&self) -> String {
        let (what, remedy) = match self {
            Self::Copy(place) => (
                format!("this outbox is a copy: relays served the original at {place}"),
                "`oncebox adopt` makes it an outbox of its own, or says that it has moved here",
            ),
            Self::Asking(place) => (
                format!(
                    "this is another database than the last relay of this outbox served, which was {place}"
                ),
                "the relay asks over NATS whether another one serves it there, and goes on when none does",
            ),
            Self::Rival(address) => (
                format!(
                    "another relay serves this outbox in another database, at {address}: one of the two is a copy"
                ),
                "stop the relays of the copy; if that is the other one, run `oncebox adopt --move` here then; if it is this \
                 one, `oncebox adopt` makes it an outbox of its own",
            ),
            Self::Denied(place) => (
                format!(
                    "this outbox may be a copy: relays served it at {place}, and NATS does not let the relay ask whether they \
                     still do"
                ),
                "let the relay's NATS user publish and subscribe to _ONCEBOX.home.>; or run `oncebox adopt --move` if it has \
                 moved here, `oncebox adopt` if it is a copy",
            ),
        };
        format!("{what}. Nothing is sent: {remedy}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn look(noted: Noted) -> Look {
        Look { noted, place: "db/orders".into(), is_same_address: false, rival: None }
    }

    fn another(is_senior: bool) -> Heard {
        Heard::Another { address: "other/orders".into(), is_senior }
    }

    fn check(noted: Noted, heard: Heard, seconds: u32, expected: Verdict) {
        let time = SECOND * seconds;
        assert_eq!(judge(&look(noted), &heard, time, time), expected, "{noted:?} {heard:?} {seconds}");
    }

    #[test]
    fn each_case_of_the_page_has_its_verdict() {
        let rival = || Verdict::Silent(Why::Rival("other/orders".into()));
        for heard in [Heard::Nothing, Heard::Nobody, Heard::Unanswered, Heard::Denied, another(true)] {
            check(Noted::Copy, heard.clone(), 600, Verdict::Silent(Why::Copy("db/orders".into())));
        }
        check(Noted::New, Heard::Nothing, 0, Verdict::Home);
        check(Noted::Here, Heard::Nothing, 0, Verdict::Wait);
        for heard in [Heard::Nobody, Heard::Ours, Heard::Denied, another(false)] {
            check(Noted::Here, heard, 0, Verdict::Home);
        }
        check(Noted::Here, Heard::Unanswered, 0, Verdict::Wait);
        check(Noted::Here, Heard::Unanswered, 3, Verdict::Home);
        check(Noted::Here, another(true), 600, rival());
        check(Noted::Moved, Heard::Nobody, 14, Verdict::Wait);
        check(Noted::Moved, Heard::Nobody, 15, Verdict::Home);
        check(Noted::Moved, Heard::Unanswered, 600, Verdict::Wait);
        check(Noted::Moved, another(true), 600, rival());
        check(Noted::Moved, Heard::Denied, 600, Verdict::Silent(Why::Denied("db/orders".into())));
        let same = Look { is_same_address: true, ..look(Noted::Moved) };
        assert_eq!(judge(&same, &Heard::Denied, SECOND, SECOND), Verdict::Home);
    }

    #[test]
    fn a_rival_that_lasted_stays_until_an_operator_decides() {
        let with = |seen: u32, lasted: u32| {
            let rival = Rival { address: "r".into(), seen: SECOND * seen, lasted: SECOND * lasted };
            judge(&Look { rival: Some(rival), ..look(Noted::Here) }, &Heard::Nobody, SECOND, SECOND)
        };
        assert_eq!(with(59, 0), Verdict::Silent(Why::Rival("r".into())));
        assert_eq!(with(60, 59), Verdict::Home, "a leftover of a failover has gone");
        assert_eq!(with(600_000, 60), Verdict::Silent(Why::Rival("r".into())));
    }
}
