//! Where a stream is, as its name in receipts tells.
//!
//! A relay may publish to a stream of another JetStream domain (from a leaf node), or of another
//! account. Such a stream acknowledges, but the JetStream that the relay asks does not know it, or
//! knows another one of that name. Names of streams have no dots, so one stands before the name:
//!
//! | in a receipt | the stream | where the relay asks about it |
//! |---|---|---|
//! | `ORDERS` | of the JetStream that the configuration names | there |
//! | `hub.ORDERS` | of the domain `hub` | `$JS.hub.API` |
//! | `-.ORDERS` | acknowledges, but no JetStream seems to know it | nowhere: the relay cannot find its losses |

use std::time::SystemTime;

/// Stands for the domain of a stream that no JetStream seems to know.
const UNSEEN: &str = "-";

/// When a stream was created, and its subjects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Birth {
    pub(crate) created: SystemTime,
    pub(crate) subjects: Vec<String>,
}

/// A stream's name with its domain.
pub(crate) fn qualified(stream: &str, domain: Option<&str>) -> String {
    domain.map_or_else(|| stream.to_owned(), |domain| format!("{domain}.{stream}"))
}

/// The name of a stream that no JetStream seems to know.
pub(crate) fn unseen(name: &str) -> String {
    format!("{UNSEEN}.{name}")
}

pub(crate) fn is_unseen(name: &str) -> bool {
    split(name).0 == Some(UNSEEN)
}

/// The domain, if one was named, and the name in it.
pub(crate) fn split(name: &str) -> (Option<&str>, &str) {
    name.split_once('.').map_or((None, name), |(domain, name)| (Some(domain), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_streams_say_where_they_are() {
        assert_eq!(split("ORDERS"), (None, "ORDERS"));
        assert_eq!(split(&qualified("ORDERS", Some("hub"))), (Some("hub"), "ORDERS"));
        assert_eq!(qualified("ORDERS", None), "ORDERS");
        assert!(is_unseen(&unseen("ORDERS")) && is_unseen(&unseen("hub.ORDERS")));
        assert!(!is_unseen("ORDERS") && !is_unseen("hub.ORDERS") && !is_unseen("-ORDERS"));
    }
}
