//! Patterns of subjects, as NATS has them.

use oncebox_schema::Subject;
pub(crate) use oncebox_schema::covers;

/// Why a text is no pattern.
pub(crate) fn problem(pattern: &str) -> Option<String> {
    let mut tokens: Vec<&str> = pattern.split('.').collect();
    if tokens.last() == Some(&">") {
        tokens.pop();
        tokens.push("*");
    }
    // A wildcard that is no whole token stays, and is refused.
    let example = tokens.iter().map(|token| if *token == "*" { "x" } else { token });
    let example = example.collect::<Vec<_>>().join(".");
    let refused = example.parse::<Subject>().err()?;
    match example.contains(['*', '>']) {
        true => Some(format!("subject {pattern:?}: * stands for a whole token, and > for the last ones")),
        false => Some(refused.to_string()),
    }
}

/// Whether two patterns have a subject in common.
pub(crate) fn overlap(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('.'), other.split('.'));
    loop {
        match (one.next(), other.next()) {
            (None, None) | (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
            (Some(a), Some(b)) if a == b || a == "*" || b == "*" => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_nats() {
        for good in ["orders", "orders.placed", "orders.*.eu", "orders.>", "*", ">"] {
            assert_eq!(problem(good), None, "{good}");
        }
        for bad in ["", "orders..x", "orders.>.x", "ord*rs", "orders.x>", "$JS.x", "a b", "_INBOX.*"] {
            assert!(problem(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn two_patterns_overlap_or_cover() {
        for (one, other, both, first) in [
            ("a.b", "a.b", true, true),
            ("a.b", "a.c", false, false),
            ("a.*", "a.b", true, true),
            ("a.*", "*.b", true, false),
            ("a.*", "a.b.c", false, false),
            ("a.>", "a", false, false),
            ("a.>", "a.b.*", true, true),
            ("a.*", "a.>", true, false),
            (">", "a.>", true, true),
            ("a.*.c", "a.>", true, false),
        ] {
            let found = (overlap(one, other), overlap(other, one), covers(one, other));
            assert_eq!(found, (both, both, first), "{one} {other}");
        }
    }
}
