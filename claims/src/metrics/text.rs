//! The text format of Prometheus: a family is described once, then come its samples, those of one
//! scope added up.

use std::{
    collections::BTreeMap,
    fmt::{Arguments, Write as _},
};

use super::{Family, Sample, Times, Value};

/// The samples of one scope, with their labels.
type Samples = Vec<(Option<(&'static str, &'static str)>, Value)>;

/// The metrics to show: families in the order of their arrival, scopes in the order of their names.
#[derive(Debug, Default)]
pub(super) struct Text<'a>(Vec<(Family, BTreeMap<&'a str, Samples>)>);

impl<'a> Text<'a> {
    /// Adds these samples to those of their scope.
    pub(super) fn add(&mut self, scope: &'a str, samples: Vec<Sample>) {
        for Sample { family, label, value } in samples {
            let place = self.0.iter().position(|(known, _)| known.name == family.name);
            let place = place.unwrap_or_else(|| {
                self.0.push((family, BTreeMap::new()));
                self.0.len() - 1
            });
            let samples = self.0[place].1.entry(scope).or_default();
            match samples.iter_mut().find(|(known, _)| *known == label) {
                Some((_, sum)) => sum.add(&value),
                None => samples.push((label, value)),
            }
        }
    }

    pub(super) fn into_string(self) -> String {
        let mut out = String::new();
        for (family, scopes) in self.0 {
            let kind = scopes.values().flatten().map(|(_, value)| value.kind()).next().unwrap_or_default();
            line(&mut out, format_args!("# HELP {0} {1}\n# TYPE {0} {kind}", family.name, family.help));
            for (scope, samples) in scopes {
                for (label, value) in samples {
                    write_sample(&mut out, family.name, &escaped(scope), label, &value);
                }
            }
        }
        out
    }
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Self::Counter(_) => "counter",
            Self::Gauge(_) => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }

    fn add(&mut self, more: &Self) {
        match (self, more) {
            (Self::Counter(sum), Self::Counter(more)) => *sum += more,
            (Self::Gauge(largest), Self::Gauge(other)) => *largest = largest.max(*other),
            (Self::Histogram(all), Self::Histogram(more)) => all.add(more),
            (Self::Counter(_) | Self::Gauge(_) | Self::Histogram(_), _) => {}
        }
    }
}

fn write_sample(
    out: &mut String,
    name: &str,
    scope: &str,
    label: Option<(&'static str, &'static str)>,
    value: &Value,
) {
    let more = label.map(|(label, value)| format!(",{label}=\"{value}\"")).unwrap_or_default();
    match value {
        Value::Counter(count) => line(out, format_args!("{name}{{scope=\"{scope}\"{more}}} {count}")),
        Value::Gauge(value) => line(out, format_args!("{name}{{scope=\"{scope}\"{more}}} {value}")),
        Value::Histogram(times) => write_histogram(out, name, scope, times),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a sum of times")]
fn write_histogram(out: &mut String, name: &str, scope: &str, times: &Times) {
    let mut count = 0;
    let bounds = times.bounds.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
    for (bucket, bound) in times.buckets.iter().zip(bounds) {
        count += bucket;
        line(out, format_args!("{name}_bucket{{scope=\"{scope}\",le=\"{bound}\"}} {count}"));
    }
    let sum = times.sum_microseconds as f64 / 1e6;
    line(out, format_args!("{name}_sum{{scope=\"{scope}\"}} {sum}"));
    line(out, format_args!("{name}_count{{scope=\"{scope}\"}} {count}"));
}

fn line(out: &mut String, line: Arguments<'_>) {
    // Writing to a String does not fail.
    let _ = writeln!(out, "{line}");
}

/// A label's value; a scope has no control characters.
fn escaped(scope: &str) -> String {
    scope.replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILY: Family = Family { name: "x_seconds", help: "X" };

    #[test]
    fn buckets_are_cumulative_and_those_of_one_scope_are_added_up() {
        let times = |buckets: &[u64]| Times {
            bounds: &[0.5, 1.0],
            buckets: buckets.to_vec(),
            sum_microseconds: 1_500_000,
        };
        let mut text = Text::default();
        text.add("a", vec![FAMILY.histogram(times(&[1, 0, 2]))]);
        text.add("a", vec![FAMILY.histogram(times(&[1, 1, 0]))]);
        assert_eq!(
            text.into_string(),
            "# HELP x_seconds X\n# TYPE x_seconds histogram\n\
             x_seconds_bucket{scope=\"a\",le=\"0.5\"} 2\nx_seconds_bucket{scope=\"a\",le=\"1\"} 3\n\
             x_seconds_bucket{scope=\"a\",le=\"+Inf\"} 5\nx_seconds_sum{scope=\"a\"} 3\nx_seconds_count{scope=\"a\"} 5\n"
        );
    }

    #[test]
    fn a_series_occurs_once_whoever_shares_its_scope() {
        let family = |name| Family { name, ..FAMILY };
        let mut text = Text::default();
        for (scope, n) in [("b", 4), ("a", 2), ("a", 3)] {
            let mut samples = family("x").counters("outcome", [("done", n), ("dead", 10 * n)]).to_vec();
            samples.push(family("y").gauge(f64::from(u32::try_from(n).unwrap())));
            samples.push(family("z").counter(n));
            text.add(scope, samples);
        }
        let text = text.into_string();
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                "x{scope=\"a\",outcome=\"done\"} 5",
                "x{scope=\"a\",outcome=\"dead\"} 50",
                "x{scope=\"b\",outcome=\"done\"} 4",
                "x{scope=\"b\",outcome=\"dead\"} 40",
                "y{scope=\"a\"} 3",
                "y{scope=\"b\"} 4",
                "z{scope=\"a\"} 5",
                "z{scope=\"b\"} 4",
            ]
        );
    }

    #[test]
    fn a_scope_cannot_end_its_label() {
        assert_eq!(escaped(r#"a"b\c"#), r#"a\"b\\c"#);
    }
}
