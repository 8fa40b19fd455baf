//! Charts as SVG, of one or two lines over the last hour.

use std::time::{Duration, SystemTime};

use maud::{Markup, html};

use crate::history::Point;

/// The time that a chart shows.
const HOUR: f64 = 3_600.0;
/// A line is broken where there was no look for this time.
const GAP: Duration = Duration::from_secs(40);

/// A line: its name, its class, and its value at a point.
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) class: &'static str,
    pub(crate) value: fn(&Point) -> f64,
}

/// A small chart for a row of a table.
pub(crate) fn spark(points: &[Point], line: &Line) -> Markup {
    let (width, height) = (140.0, 28.0);
    let peak = peak(points, std::slice::from_ref(line));
    let name = format!("{} of the last hour, at most {}", line.name, short(peak));
    html! {
        svg.spark viewBox=(format!("0 0 {width} {height}")) width=(width) height=(height) role="img" aria-label=(name) {
            title { (name) }
            path.(line.class) d=(path(points, line, peak, width, height)) {}
        }
    }
}

/// A chart with its scale.
pub(crate) fn chart(points: &[Point], title: &str, unit: &str, lines: &[Line]) -> Markup {
    let (width, height) = (460.0, 120.0);
    let peak = peak(points, lines);
    let last = |line: &Line| points.last().map_or_else(|| "-".to_owned(), |point| short((line.value)(point)));
    let name = format!("{title} over the last hour, at most {} {unit}", short(peak));
    html! {
        figure.chart {
            figcaption {
                strong { (title) }
                @for line in lines {
                    span.key { i.(line.class) {} (line.name) " " b { (last(line)) " " (unit) } }
                }
            }
            svg viewBox=(format!("0 0 {width} {height}")) role="img" aria-label=(name) preserveAspectRatio="none" {
                @for part in 0..4 {
                    @let y = 0.5 + f64::from(part) * (height - 1.0) / 3.0;
                    path.grid d=(format!("M0 {y:.1}H{width}")) {}
                }
                @for line in lines {
                    path.(line.class) d=(path(points, line, peak, width, height)) {}
                }
            }
            p.scale { span { "an hour ago" } span { "peak " (short(peak)) " " (unit) } span { "now" } }
        }
    }
}

fn peak(points: &[Point], lines: &[Line]) -> f64 {
    lines.iter().flat_map(|line| points.iter().map(line.value)).fold(0.0, f64::max)
}

/// `0`, `0.25`, `17`, `1.2k`, `3.4M`.
fn short(value: f64) -> String {
    match value {
        v if v < 0.005 => "0".to_owned(),
        v if v < 10.0 => format!("{v:.2}").trim_end_matches('0').trim_end_matches('.').to_owned(),
        v if v < 1_000.0 => format!("{v:.0}"),
        v if v < 1e6 => format!("{:.1}k", v / 1e3),
        v => format!("{:.1}M", v / 1e6),
    }
}

/// The newest point stands at the right edge.
fn path(points: &[Point], line: &Line, peak: f64, width: f64, height: f64) -> String {
    let Some(now) = points.last().map(|point| point.at) else { return String::new() };
    let (mut text, mut before): (String, Option<SystemTime>) = (String::new(), None);
    for point in points {
        let age = now.duration_since(point.at).unwrap_or_default().as_secs_f64();
        let x = width - 1.0 - age / HOUR * (width - 2.0);
        let y = height - 2.0 - (line.value)(point) / peak.max(f64::MIN_POSITIVE) * (height - 4.0);
        let is_joined =
            before.is_some_and(|before| point.at.duration_since(before).is_ok_and(|between| between < GAP));
        text += &format!("{}{:.1} {:.1}", if is_joined { 'L' } else { 'M' }, x.max(0.0), y);
        before = Some(point.at);
    }
    // One point alone would not be seen.
    if points.len() == 1 { text + "h-1" } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(values: &[(u64, i64)]) -> Vec<Point> {
        let point = |&(second, backlog_messages): &(u64, i64)| Point {
            at: SystemTime::UNIX_EPOCH + Duration::from_secs(second),
            lag_seconds: 0.0,
            backlog_messages,
            enqueued_per_second: 0.0,
            settled_per_second: 0.0,
        };
        values.iter().map(point).collect()
    }

    #[expect(clippy::cast_precision_loss, reason = "small")]
    const BACKLOG: Line =
        Line { name: "backlog", class: "one", value: |point| point.backlog_messages as f64 };

    #[test]
    fn a_line_ends_now_and_breaks_where_nobody_looked() {
        let points = points(&[(0, 0), (10, 5), (100, 10), (110, 10)]);
        let text = path(&points, &BACKLOG, 10.0, 100.0, 24.0);
        assert_eq!(text.matches('M').count(), 2, "{text}");
        assert!(text.ends_with("L99.0 2.0"), "{text}");
        assert_eq!(path(&[], &BACKLOG, 0.0, 100.0, 24.0), "");
        assert!(!chart(&points, "Backlog", "messages", &[BACKLOG]).into_string().contains("NaN"));
        assert!(!spark(&points[..1], &BACKLOG).into_string().contains("NaN"));
    }

    #[test]
    fn scales_are_short() {
        let texts = [0.0, 0.25, 1.5, 17.4, 1_234.0, 3_400_000.0].map(short);
        assert_eq!(texts, ["0", "0.25", "1.5", "17", "1.2k", "3.4M"]);
    }
}
