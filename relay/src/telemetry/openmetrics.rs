//! The metrics of a scrape, from their text to the data of OpenTelemetry, as a collector converts a
//! scrape by itself.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::{
    common::v1::{AnyValue, KeyValue, any_value},
    metrics::v1::{
        AggregationTemporality::Cumulative, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
        Sum, metric::Data, number_data_point::Value,
    },
};

/// When the counters began, and when the text was written, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// The metrics of a text that `prometheus_client` wrote: counters, gauges and histograms.
pub(crate) fn metrics(text: &str, span: Span) -> Vec<Metric> {
    let mut metrics: Vec<Family<'_>> = Vec::new();
    for line in text.lines() {
        if let Some(head) = line.strip_prefix("# ") {
            let mut words = head.splitn(3, ' ');
            let (Some(word), Some(name), Some(rest)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            if metrics.last().is_none_or(|family| family.name != name) {
                metrics.push(Family { name, ..Family::default() });
            }
            let Some(family) = metrics.last_mut() else { continue };
            match word {
                "HELP" => family.help = rest,
                "TYPE" => family.kind = rest,
                "UNIT" => family.unit = rest,
                _ => {}
            }
        } else if let (Some(family), Some(sample)) = (metrics.last_mut(), sample(line)) {
            family.samples.push(sample);
        }
    }
    metrics.into_iter().filter_map(|family| family.metric(span)).collect()
}

type Labels = BTreeMap<String, String>;

/// A line: the name, labels, value.
type Sample<'a> = (&'a str, Labels, f64);

#[derive(Debug, Default)]
struct Family<'a> {
    name: &'a str,
    help: &'a str,
    kind: &'a str,
    unit: &'a str,
    samples: Vec<Sample<'a>>,
}

impl Family<'_> {
    /// `None` for a kind that the relay does not have, and for a family without samples.
    fn metric(self, span: Span) -> Option<Metric> {
        let (name, description) = (self.name.to_owned(), self.help.trim_end_matches('.').to_owned());
        // OpenTelemetry writes units as UCUM does.
        let unit = if self.unit == "seconds" { "s" } else { self.unit }.to_owned();
        if self.samples.is_empty() {
            return None;
        }
        let data = match self.kind {
            "counter" => Data::Sum(Sum {
                data_points: self.points(span),
                aggregation_temporality: Cumulative.into(),
                is_monotonic: true,
            }),
            "gauge" => Data::Gauge(Gauge { data_points: self.points(span) }),
            "histogram" => Data::Histogram(Histogram {
                data_points: self.distributions(span),
                aggregation_temporality: Cumulative.into(),
            }),
            _ => return None,
        };
        Some(Metric { name, description, unit, data: Some(data), ..Metric::default() })
    }

    fn points(self, span: Span) -> Vec<NumberDataPoint> {
        let point = |(_, labels, value): Sample<'_>| NumberDataPoint {
            attributes: attributes(labels),
            start_time_unix_nano: span.from,
            time_unix_nano: span.to,
            value: Some(Value::AsDouble(value)),
            ..NumberDataPoint::default()
        };
        self.samples.into_iter().map(point).collect()
    }

    /// The buckets of a text count all below their bound, those of OpenTelemetry do not overlap.
    fn distributions(self, span: Span) -> Vec<HistogramDataPoint> {
        let mut all: BTreeMap<Labels, HistogramDataPoint> = BTreeMap::new();
        let mut counted: BTreeMap<Labels, u64> = BTreeMap::new();
        for (name, mut labels, value) in self.samples {
            let bound = labels.remove("le");
            let point = all.entry(labels.clone()).or_insert_with(|| HistogramDataPoint {
                attributes: attributes(labels.clone()),
                start_time_unix_nano: span.from,
                time_unix_nano: span.to,
                ..HistogramDataPoint::default()
            });
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
            let count = value as u64;
            match (name.rsplit_once('_').map(|(_, part)| part), bound) {
                (Some("bucket"), Some(bound)) => {
                    let below = counted.insert(labels, count).unwrap_or(0);
                    point.bucket_counts.push(count.saturating_sub(below));
                    point.explicit_bounds.extend(bound.parse().ok().filter(|bound: &f64| bound.is_finite()));
                }
                (Some("sum"), _) => point.sum = Some(value),
                (Some("count"), _) => point.count = count,
                _ => {}
            }
        }
        all.into_values().collect()
    }
}

fn attributes(labels: Labels) -> Vec<KeyValue> {
    let attribute = |(key, text)| {
        let value = Some(AnyValue { value: Some(any_value::Value::StringValue(text)) });
        KeyValue { key, value, ..KeyValue::default() }
    };
    labels.into_iter().map(attribute).collect()
}

/// `name{label="text",..} value`.
fn sample(line: &str) -> Option<Sample<'_>> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Labels::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while let Some((label, text)) = rest.split_once("=\"") {
            let (value, behind) = unquoted(text)?;
            labels.insert(label.trim_start_matches(',').to_owned(), value);
            rest = behind;
            if let Some(behind) = rest.strip_prefix('}') {
                rest = behind;
                break;
            }
        }
    }
    let value = rest.trim_start().split(' ').next()?.parse().ok()?;
    Some((name, labels, value))
}

/// A text up to its closing quotation mark, and the rest.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut characters) = (String::new(), text.char_indices());
    loop {
        match characters.next()? {
            (at, '"') => return Some((value, &text[at + 1..])),
            (_, '\\') => match characters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            (_, other) => value.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::{
        encoding::text::encode,
        metrics::{counter::Counter, family::Family as LabelledFamily, gauge::Gauge, histogram::Histogram},
        registry::{Registry, Unit},
    };

    use super::*;

    const SPAN: Span = Span { from: 1, to: 2 };

    #[test]
    fn counters_gauges_and_histograms_become_the_same_data() {
        let mut registry = Registry::with_prefix("oncebox");
        let (sent, by_type) =
            (Counter::<u64>::default(), LabelledFamily::<[(&str, String); 1], Gauge>::default());
        let time = Histogram::new([0.5, 1.0]);
        registry.register("sent", "Messages sent", sent.clone());
        registry.register("sagas", "Sagas", by_type.clone());
        registry.register_with_unit("claim", "A claim", Unit::Seconds, time.clone());
        sent.inc_by(7);
        by_type.get_or_create(&[("type", "a \"b\"\\\n,c=\"}".to_owned())]).set(-3);
        [0.1, 0.2, 0.7, 9.0].iter().for_each(|seconds| time.observe(*seconds));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let metrics = metrics(&text, SPAN);
        let names: Vec<_> =
            metrics.iter().map(|m| (m.name.as_str(), m.unit.as_str(), m.description.as_str())).collect();
        assert_eq!(
            names,
            [
                ("oncebox_sent", "", "Messages sent"),
                ("oncebox_sagas", "", "Sagas"),
                ("oncebox_claim_seconds", "s", "A claim")
            ]
        );
        let Some(Data::Sum(sum)) = &metrics[0].data else { panic!("{metrics:?}") };
        assert!(sum.is_monotonic && sum.data_points[0].value == Some(Value::AsDouble(7.0)));
        assert_eq!((sum.data_points[0].start_time_unix_nano, sum.data_points[0].time_unix_nano), (1, 2));
        let Some(Data::Gauge(gauge)) = &metrics[1].data else { panic!("{metrics:?}") };
        assert_eq!(gauge.data_points[0].value, Some(Value::AsDouble(-3.0)));
        let expected = Labels::from([("type".to_owned(), "a \"b\"\\\n,c=\"}".to_owned())]);
        assert_eq!(gauge.data_points[0].attributes, attributes(expected));
        let Some(Data::Histogram(histogram)) = &metrics[2].data else { panic!("{metrics:?}") };
        let point = &histogram.data_points[0];
        assert_eq!(
            (&point.bucket_counts[..], &point.explicit_bounds[..], point.count),
            (&[2, 1, 1][..], &[0.5, 1.0][..], 4)
        );
        assert!(point.sum.is_some_and(|sum| (sum - 10.0).abs() < 1e-9));
    }

    #[test]
    fn a_broken_text_gives_no_metric() {
        for text in [
            "",
            "# EOF\n",
            "a{b=\"c 1\n",
            "# TYPE a counter\na_total x\n",
            "# TYPE a summary\na 1\n",
            "{} 1",
            "# TYPE",
        ] {
            assert!(metrics(text, SPAN).is_empty(), "{text}");
        }
    }
}
