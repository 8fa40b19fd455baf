//! Streams that the server feeds with the messages of another, as its `republish` says.

use oncebox_relay::facts::covers;

use super::{Looker, is_denial};

impl Looker<'_> {
    /// Matters only where messages carry the name of the stream that must take them.
    pub(super) async fn look_for_fed_streams(&mut self, subjects: &[String]) {
        if self.config.tuning.limits.expected_stream.is_none() {
            return;
        }
        for at in 0..self.survey.streams.len() {
            let Some([source, destination]) = &self.survey.streams[at].republishes else { continue };
            let is_ours = |subject: &String| source.is_empty() || covers(source, subject);
            if !subjects.is_empty() && !subjects.iter().any(is_ours) {
                continue;
            }
            match self.stream_of(&pattern(destination)).await {
                Ok(fed) => self.survey.streams[at].feeds = fed,
                // A user who may not ask is told so for the subjects of the messages.
                Err(problem) if is_denial(&problem) => return,
                Err(problem) => {
                    let name = &self.survey.streams[at].name;
                    self.survey
                        .unasked
                        .push(format!("which stream the republish of {name} feeds: {problem}"));
                    return;
                }
            }
        }
    }
}

/// The subjects that a destination stands for: `copy.{{wildcard(1)}}.b` for `copy.*.b`. A function
/// that may yield several tokens stands for all that follow.
fn pattern(destination: &str) -> String {
    let mut tokens = Vec::new();
    for token in destination.split('.') {
        let is_position = token.strip_prefix('$').is_some_and(|at| at.parse::<u32>().is_ok());
        if is_position || token.to_ascii_lowercase().starts_with("{{wildcard(") {
            tokens.push("*");
        } else if token.contains("{{") {
            tokens.push(">");
            break;
        } else {
            tokens.push(token);
        }
    }
    tokens.join(".")
}

#[cfg(test)]
mod tests {
    use super::pattern;

    #[test]
    fn a_destination_stands_for_the_subjects_that_it_may_yield() {
        for (destination, expected) in [
            ("copy.>", "copy.>"),
            ("copy.$2.x", "copy.*.x"),
            ("copy.{{wildcard(1)}}.x", "copy.*.x"),
            ("copy.{{Wildcard(1)}}", "copy.*"),
            ("copy.{{split(1,.)}}.x", "copy.>"),
            ("$SYS.a", "$SYS.a"),
        ] {
            assert_eq!(pattern(destination), expected);
        }
    }
}
