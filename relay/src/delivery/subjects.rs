//! Which subjects a stream takes.

pub use oncebox_schema::covers;

/// A pattern of subjects as a regular expression of PostgreSQL.
#[must_use]
pub fn expression(pattern: &str) -> String {
    let mut expression = String::from("^");
    let mut tokens = pattern.split('.').peekable();
    while let Some(token) = tokens.next() {
        match token {
            "*" => expression.push_str("[^.]+"),
            ">" => expression.push_str(".+"),
            token => token.chars().for_each(|c| {
                // Other characters may have a meaning in a regular expression.
                if !c.is_ascii_alphanumeric() {
                    expression.push('\\');
                }
                expression.push(c);
            }),
        }
        if tokens.peek().is_some() {
            expression.push_str("\\.");
        }
    }
    expression.push('$');
    expression
}

/// The longest regular expression that a relay sends: PostgreSQL calls one of some hundred thousand
/// characters too complex, and would fail each pass.
const EXPRESSION_MAX: usize = 50_000;

/// One regular expression for several patterns: it takes each subject that any of them takes, and
/// all subjects if the patterns are too many.
#[must_use]
pub fn any_expression(patterns: &[String]) -> String {
    let each: Vec<String> = patterns.iter().map(|pattern| expression(pattern)).collect();
    let any = each.join("|");
    if any.len() > EXPRESSION_MAX { expression(">") } else { any }
}

/// The patterns of [`any_expression`].
pub(crate) fn patterns(any: &str) -> Vec<String> {
    let any = any.strip_prefix('^').and_then(|any| any.strip_suffix('$')).unwrap_or_default();
    // A bar of a subject stands after a backslash, so it is no end of a pattern.
    any.split("$|^").map(|one| one.replace("[^.]+", "*").replace(".+", ">").replace('\\', "")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_cover_as_nats_has_it() {
        for (pattern, subject, expected) in [
            ("orders.placed", "orders.placed", true),
            ("orders.placed", "orders.placed.x", false),
            ("orders.placed.x", "orders.placed", false),
            ("orders.*", "orders.placed", true),
            ("orders.*", "orders", false),
            ("orders.*", "orders.placed.x", false),
            ("orders.>", "orders.placed.x", true),
            ("orders.>", "orders", false),
            ("*.placed", "orders.placed", true),
            (">", "orders", true),
            ("order.>", "orders.placed", false),
        ] {
            assert_eq!(covers(pattern, subject), expected, "{pattern} {subject}");
        }
    }

    #[test]
    fn the_patterns_of_an_expression_are_those_that_it_was_made_of() {
        let made = ["orders.>", "*.pla-ced.*", "a$|^b.+c", ">", "one_2"].map(str::to_owned);
        assert_eq!(patterns(&any_expression(&made)), made);
        assert_eq!(patterns(&any_expression(&made[..1])), made[..1]);
    }
}
