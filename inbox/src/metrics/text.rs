//! The text format of Prometheus: a family is described once, then come its samples, those of one scope added up.

use std::fmt::{Arguments, Write as _};

use crate::histogram::Times;

/// A metric, with its name and meaning as docs/metrics.md has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
}

/// What shares a scope.
pub(super) type Group<T> = (String, Vec<T>);

#[derive(Debug, Default)]
pub(super) struct Text(String);

impl Text {
    pub(super) fn into_string(self) -> String {
        self.0
    }

    /// A counter with one more label than the scope.
    pub(super) fn counters<T, const N: usize>(
        &mut self,
        family: Family,
        label: &str,
        groups: &[Group<T>],
        values: impl Fn(&T) -> [(&'static str, u64); N],
    ) {
        self.describe(family, "counter");
        for (scope, members) in groups {
            let Some((first, rest)) = members.split_first() else { continue };
            let mut sums = values(first);
            for member in rest {
                for (sum, (_, value)) in sums.iter_mut().zip(values(member)) {
                    sum.1 += value;
                }
            }
            for (value, count) in sums {
                self.line(format_args!("{}{{scope=\"{scope}\",{label}=\"{value}\"}} {count}", family.name));
            }
        }
    }

    /// A counter with no label but the scope.
    pub(super) fn counter<T>(&mut self, family: Family, groups: &[Group<T>], value: impl Fn(&T) -> u64) {
        self.describe(family, "counter");
        for (scope, members) in groups {
            let sum: u64 = members.iter().map(&value).sum();
            self.line(format_args!("{}{{scope=\"{scope}\"}} {sum}", family.name));
        }
    }

    /// The largest of a scope.
    pub(super) fn gauge<T>(&mut self, family: Family, groups: &[Group<T>], value: impl Fn(&T) -> f64) {
        self.describe(family, "gauge");
        for (scope, members) in groups {
            let largest = members.iter().map(&value).fold(0.0, f64::max);
            self.line(format_args!("{}{{scope=\"{scope}\"}} {largest}", family.name));
        }
    }

    pub(super) fn histogram<T>(&mut self, family: Family, groups: &[Group<T>], times: impl Fn(&T) -> Times) {
        self.describe(family, "histogram");
        for (scope, members) in groups {
            let together = members.iter().map(&times).reduce(|all, more| all.and(&more));
            if let Some(together) = together {
                self.times(family.name, scope, &together);
            }
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a sum of times")]
    fn times(&mut self, name: &str, scope: &str, times: &Times) {
        let mut count = 0;
        let bounds = times.bounds.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
        for (bucket, bound) in times.buckets.iter().zip(bounds) {
            count += bucket;
            self.line(format_args!("{name}_bucket{{scope=\"{scope}\",le=\"{bound}\"}} {count}"));
        }
        let sum = times.sum_microseconds as f64 / 1e6;
        self.line(format_args!("{name}_sum{{scope=\"{scope}\"}} {sum}"));
        self.line(format_args!("{name}_count{{scope=\"{scope}\"}} {count}"));
    }

    fn describe(&mut self, Family { name, help }: Family, kind: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    fn line(&mut self, line: Arguments<'_>) {
        // Writing to a String does not fail.
        let _ = writeln!(self.0, "{line}");
    }
}

/// A label's value; a scope has no control characters.
pub(super) fn escaped(scope: &str) -> String {
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
        let groups = [("a".to_owned(), vec![times(&[1, 0, 2]), times(&[1, 1, 0])])];
        let mut text = Text::default();
        text.histogram(FAMILY, &groups, Clone::clone);
        assert_eq!(
            text.into_string(),
            "# HELP x_seconds X\n# TYPE x_seconds histogram\n\
             x_seconds_bucket{scope=\"a\",le=\"0.5\"} 2\nx_seconds_bucket{scope=\"a\",le=\"1\"} 3\n\
             x_seconds_bucket{scope=\"a\",le=\"+Inf\"} 5\nx_seconds_sum{scope=\"a\"} 3\nx_seconds_count{scope=\"a\"} 5\n"
        );
    }

    #[test]
    fn a_series_occurs_once_whoever_shares_its_scope() {
        let groups = [("a".to_owned(), vec![2, 3]), ("b".to_owned(), vec![4])];
        let mut text = Text::default();
        text.counters(FAMILY, "outcome", &groups, |n: &u64| [("done", *n), ("dead", 10 * n)]);
        text.gauge(FAMILY, &groups, |n| f64::from(u32::try_from(*n).unwrap()));
        text.counter(FAMILY, &groups, |n| *n);
        let text = text.into_string();
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                "x_seconds{scope=\"a\",outcome=\"done\"} 5",
                "x_seconds{scope=\"a\",outcome=\"dead\"} 50",
                "x_seconds{scope=\"b\",outcome=\"done\"} 4",
                "x_seconds{scope=\"b\",outcome=\"dead\"} 40",
                "x_seconds{scope=\"a\"} 3",
                "x_seconds{scope=\"b\"} 4",
                "x_seconds{scope=\"a\"} 5",
                "x_seconds{scope=\"b\"} 4",
            ]
        );
    }

    #[test]
    fn a_scope_cannot_end_its_label() {
        assert_eq!(escaped(r#"a"b\c"#), r#"a\"b\\c"#);
    }
}
