//! Errors about an address, without showing a password that stands in it.

use tokio_postgres::Config;

/// Where a URL has characters that may belong to its password, no reading of it is certain: the
/// text that looks like a host may be half of a secret. So the URL is refused, and no part of it
/// shown.
pub(super) const AMBIGUOUS: &str = "has an @, /, ? or # where it may belong to the password, so host and password cannot be \
     told apart; in user and password write @ as %40, / as %2F, ? as %3F and # as %23, and in parameters @ as %40";

/// Whether the login cannot be told from the rest: it ends at the only `@`, before the first `/`,
/// `?` and `#`.
pub(super) fn is_ambiguous(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let (all, before) = (rest.matches('@').count(), authority.matches('@').count());
    all > 1 || all > before || rest.contains('#')
}

/// The problem with a text that tokio-postgres does not take. Names a parameter, but no value,
/// and no name that may be a part of a password.
pub(super) fn problem_of(text: &str) -> String {
    let is_url = text.contains("://");
    // Quoted values may hold anything.
    if !is_url && (text.contains(['\'', '\\']) || !text.contains('=')) {
        return "is no PostgreSQL URL or connection string".to_owned();
    }
    let parameters: Vec<&str> = match text.split_once('?') {
        Some((_, parameters)) if is_url => parameters.split('&').collect(),
        None if is_url => Vec::new(),
        _ => text.split_ascii_whitespace().collect(),
    };
    for parameter in parameters {
        let name = parameter.split('=').next().unwrap_or_default();
        let alone = if is_url { format!("postgres:///?{parameter}") } else { parameter.to_owned() };
        if alone.parse::<Config>().is_err() {
            return format!(
                "has the parameter \"{}\", which is unknown here or has an invalid value",
                name.escape_debug()
            );
        }
        if name == "password" {
            return "is no PostgreSQL URL or connection string; a password with blanks is written in single quotes, in a \
                    URL with %20"
                .to_owned();
        }
    }
    if is_url && ["postgres://", "postgresql://"].iter().any(|scheme| text.starts_with(scheme)) {
        "is a PostgreSQL URL with an invalid host, port or escape".to_owned()
    } else {
        "is no PostgreSQL URL or connection string".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_ends_at_the_only_at_sign() {
        for (url, expected) in [
            ("postgres://h/d", false),
            ("postgres://u:p%40ss%2Fw%23@h:5432/d?application_name=a", false),
            ("u:p@h:4222", false),
            ("postgres://u:p@ss@h/d", true),
            ("postgres://u:p@ss:5432/w#rd@h/d", true),
            ("postgres://u:p/w@h/d", true),
            ("postgres://u:p#w@h/d", true),
            ("postgres://u:p?w@h/d", true),
            ("postgres://h/d?application_name=a@b", true),
            ("postgres://u:p@h/d#x", true),
        ] {
            assert_eq!(is_ambiguous(url), expected, "{url}");
        }
    }

    #[test]
    fn the_parameter_at_fault_is_named_and_no_part_of_a_password() {
        for (text, part) in [
            ("postgres://me:secret@h/d?application_name=a&foo=secret", "parameter \"foo\""),
            ("postgres://h/d?connect_timeout=soon", "parameter \"connect_timeout\""),
            ("postgresql://h:many/d", "host, port or escape"),
            ("host=h foo=secret", "parameter \"foo\""),
            ("host=h password=my secret=b", "single quotes"),
            ("postgres://h/d?password=my&secret=b", "%20"),
            ("host=h password='my secret", "no PostgreSQL URL"),
            ("http://me:secret@x", "no PostgreSQL URL"),
            ("secret", "no PostgreSQL URL"),
        ] {
            let problem = problem_of(text);
            assert!(text.parse::<Config>().is_err(), "{text}");
            assert!(problem.contains(part) && !problem.contains("secret"), "{text}: {problem}");
        }
    }
}
