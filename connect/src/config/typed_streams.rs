//! Streams from the command line or the environment: `ORDERS=orders.>,payments.>`.

use super::stream::{self, StreamTable, is_subject, stream_name};

/// Several stand one after the other, with `;` between them.
pub(super) fn parse(text: &str) -> Result<Vec<StreamTable>, String> {
    text.split(';').map(str::trim).filter(|part| !part.is_empty()).map(one).collect()
}

fn one(text: &str) -> Result<StreamTable, String> {
    let (name, subjects) = text.split_once('=').ok_or_else(|| {
        format!("{text:?} is not NAME=SUBJECTS, such as 'ORDERS=orders.>,payments.>', quoted for the shell")
    })?;
    let subjects: Vec<String> = subjects.split(',').map(|subject| subject.trim().to_owned()).collect();
    match subjects.iter().find(|subject| !is_subject(subject)) {
        Some(bad) => Err(format!("{bad:?} is not a subject")),
        None => Ok(stream::created(stream_name(name.trim())?, subjects)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_read_and_mistakes_are_named() {
        let read = parse("ORDERS = orders.>, payments.*.made ;STOCK=stock").unwrap();
        let read: Vec<_> = read.iter().map(|s| (s.name.as_str(), s.config.subjects.join(" "))).collect();
        assert_eq!(read, [("ORDERS", "orders.> payments.*.made".to_owned()), ("STOCK", "stock".to_owned())]);
        for (text, problem) in [
            ("orders.>", "not NAME=SUBJECTS"),
            ("A=", "\"\" is not a subject"),
            ("A=b,", "\"\" is not a subject"),
            ("A=b.>.c", "\"b.>.c\" is not a subject"),
            ("A.B=c", "not a name"),
            ("=c", "not a name"),
        ] {
            let found = parse(text).unwrap_err();
            assert!(found.contains(problem), "{text}: {found}");
        }
    }
}
