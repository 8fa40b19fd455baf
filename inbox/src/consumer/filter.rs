//! Whether a consumer's filter can let anything of its stream through.

use async_nats::jetstream::stream::Stream;
use futures_util::StreamExt as _;

use crate::{Error, InvalidSettings};

/// Checks that the stream can have a message that passes the filter: by its subjects, or one that
/// it has from before they were changed. Messages that come from a mirror, from sources or through
/// a transform may have any subject.
pub(super) async fn check(stream: &Stream, filters: &[String]) -> Result<(), Error> {
    for filter in filters {
        check_one(stream, filter).await?;
    }
    Ok(())
}

async fn check_one(stream: &Stream, filter: &str) -> Result<(), Error> {
    let config = &stream.cached_info().config;
    let takes_any = config.mirror.is_some()
        || config.sources.as_ref().is_some_and(|sources| !sources.is_empty())
        || config.subject_transform.is_some();
    let subjects = &config.subjects;
    if filter.is_empty() || takes_any || subjects.iter().any(|subject| overlap(filter, subject)) {
        return Ok(());
    }
    let failed = |error| Error::Broker(format!("look for subjects \"{filter}\" in the stream"), error);
    let mut stored = stream.info_with_subjects(filter).await.map_err(|error| failed(error.into()))?;
    if stored.next().await.is_some() {
        return Ok(());
    }
    let mistake = format!(
        "filter_subject \"{}\" matches nothing that stream \"{}\" takes, which is {}: nothing would ever be consumed",
        filter.escape_debug(),
        config.name,
        subjects.join(", ")
    );
    Err(InvalidSettings(vec![mistake]).into())
}

/// Whether a subject can match both patterns: `*` is any one token, a last `>` one or more.
pub(super) fn overlap(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('.'), other.split('.'));
    loop {
        match (one.next(), other.next()) {
            (None, None) | (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
            (None, Some(_)) | (Some(_), None) => return false,
            (Some(a), Some(b)) if a == b || a == "*" || b == "*" => {}
            (Some(_), Some(_)) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_overlap_when_a_subject_matches_both() {
        for (one, other, expected) in [
            ("orders.placed", "orders.placed", true),
            ("orders.placed", "orders.paid", false),
            ("orders.placed", "orders", false),
            ("orders.placed", "order.placed", false),
            ("orders.*", "orders.placed", true),
            ("orders.*", "orders.placed.again", false),
            ("orders.*", "*.placed", true),
            ("orders.*.a", "orders.b.*", true),
            ("orders.*.a", "orders.*.b", false),
            ("orders.>", "orders", false),
            ("orders.>", "orders.placed.again", true),
            ("orders.>", "*.*.again", true),
            ("orders.>", "orders.>", true),
            ("orders.>", "payments.>", false),
            ("orders.>", "*", false),
            (">", "orders", true),
            ("*", "orders.placed", false),
            ("*.>", "orders.*", true),
            ("orders.paid.>", "orders.*", false),
        ] {
            assert_eq!(overlap(one, other), expected, "{one} {other}");
            assert_eq!(overlap(other, one), expected, "{other} {one}");
        }
    }
}
