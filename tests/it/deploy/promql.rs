//! The parts of a PromQL expression: its selectors, and the labels that it groups by.

use std::collections::BTreeSet;

use oncebox_tests::Prometheus;

const AGGREGATIONS: &[&str] = &["sum", "max", "min", "avg", "count", "topk", "bottomk", "quantile", "group"];
const OPERATORS: &[&str] = &["and", "or", "unless", "bool", "offset"];
const WITH_LABELS: &[&str] = &["by", "without", "on", "ignoring", "group_left", "group_right"];

/// The names that an expression relies on.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    /// Such as `up{job="oncebox"}`.
    pub(crate) selectors: Vec<String>,
    /// Labels of its matchers and of its grouping.
    pub(crate) labels: BTreeSet<String>,
}

impl Names {
    pub(crate) fn of(expression: &str) -> Self {
        let (mut names, mut rest) = (Self::default(), expression);
        while let Some(first) = rest.chars().next() {
            if first == '[' {
                rest = rest.split_once(']').expect("a range ends").1;
            } else if first.is_ascii_alphabetic() || first == '_' {
                rest = names.take_word(rest);
            } else if first.is_ascii_digit() {
                rest = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '.');
            } else {
                rest = &rest[first.len_utf8()..];
            }
        }
        names
    }

    fn take_word<'a>(&mut self, text: &'a str) -> &'a str {
        let end = text.find(|c: char| !is_of_word(c)).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        let follows = rest.trim_start();
        if WITH_LABELS.contains(&word) {
            let (labels, rest) = follows.trim_start_matches('(').split_once(')').expect("labels end");
            self.labels.extend(labels.split(',').map(|label| label.trim().to_owned()));
            return rest;
        }
        if AGGREGATIONS.contains(&word) || OPERATORS.contains(&word) || follows.starts_with('(') {
            return rest;
        }
        // A matcher's value with a brace in it is not for alerts.
        let Some((matchers, rest)) = rest.strip_prefix('{').and_then(|inner| inner.split_once('}')) else {
            self.selectors.push(word.to_owned());
            return rest;
        };
        let in_quotes = |part: usize| part % 2 == 1;
        let outside = matchers.split('"').enumerate().filter(|(part, _)| !in_quotes(*part));
        for (_, label) in outside {
            let label = label.trim_matches(|c: char| !is_of_word(c));
            self.labels.extend((!label.is_empty()).then(|| label.to_owned()));
        }
        self.selectors.push(format!("{word}{{{matchers}}}"));
        rest
    }

    /// Its first metric that this Prometheus has never seen, if any.
    pub(crate) async fn missing(&self, prometheus: &Prometheus) -> Option<String> {
        let mut seen = BTreeSet::new();
        for selector in &self.selectors {
            let samples = prometheus.query(selector).await.unwrap();
            if samples.is_empty() {
                return Some(format!("nothing is selected by {selector}"));
            }
            let labels = samples.iter().filter_map(|sample| sample["metric"].as_object());
            seen.extend(labels.flat_map(|labels| labels.keys().cloned()));
        }
        self.labels.iter().find(|label| !seen.contains(*label)).map(|label| format!("no label {label}"))
    }
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

#[test]
fn selectors_and_labels_of_expressions() {
    let check = |expression: &str, selectors: &[&str], labels: &[&str]| {
        let labels = labels.iter().map(ToString::to_string).collect();
        let selectors = selectors.iter().map(ToString::to_string).collect();
        assert_eq!(Names::of(expression), Names { selectors, labels }, "{expression}");
    };
    check("a_b > 60", &["a_b"], &[]);
    check("max by (job) (up{job=~\"a.*\"}) == 0 or absent(up)", &["up{job=~\"a.*\"}", "up"], &["job"]);
    check(
        "histogram_quantile(0.99, sum by (scope, le) (rate(x_bucket{o=\"p|q\", r!=\"s\"}[5m]))) > 1e3",
        &["x_bucket{o=\"p|q\", r!=\"s\"}"],
        &["scope", "le", "o", "r"],
    );
    check("rate(a[15m]) > 0.05 * rate(b[15m])", &["a", "b"], &[]);
}
