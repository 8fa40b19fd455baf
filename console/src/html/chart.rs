//! Charts as SVG, of one or two lines over a stretch of time.

use std::time::{Duration, SystemTime};

use maud::{Markup, html};

/// A point of a line.
pub(crate) trait Timed {
    fn at(&self) -> SystemTime;
}

/// A line: its name, its class, and its value at a point, if it has one there.
pub(crate) struct Line<P> {
    pub(crate) name: &'static str,
    pub(crate) class: &'static str,
    pub(crate) value: fn(&P) -> Option<f64>,
}

/// The time that charts show.
pub(crate) struct Scale {
    /// As in "over the last hour".
    pub(crate) name: &'static str,
    pub(crate) began: String,
    pub(crate) ended: String,
    /// The right edge; the newest point without one.
    pub(crate) until: Option<SystemTime>,
    pub(crate) span: Duration,
    /// A line is broken where there was no look for this time.
    pub(crate) gap: Duration,
    /// Events, each with its time: a stroke of its own.
    pub(crate) marks: Vec<(SystemTime, String)>,
    /// Parts of the chart, each with its name and the address of its moment.
    pub(crate) moments: Vec<(String, String)>,
}

impl Scale {
    /// The last hour.
    pub(crate) fn hour() -> Self {
        Self {
            name: "the last hour",
            began: "an hour ago".to_owned(),
            ended: "now".to_owned(),
            until: None,
            span: Duration::from_secs(3_600),
            gap: Duration::from_secs(40),
            marks: Vec::new(),
            moments: Vec::new(),
        }
    }

    fn x(&self, at: SystemTime, until: SystemTime, width: f64) -> f64 {
        let age = until.duration_since(at).unwrap_or_default().as_secs_f64();
        (width - 1.0 - age / self.span.as_secs_f64() * (width - 2.0)).max(0.0)
    }
}

/// A small chart for a row of a table.
pub(crate) fn spark<P: Timed>(points: &[P], line: &Line<P>, scale: &Scale) -> Markup {
    let (width, height) = (140.0, 28.0);
    let peak = peak(points, std::slice::from_ref(line));
    let name = format!("{} of {}, at most {}", line.name, scale.name, short(peak));
    html! {
        svg.spark viewBox=(format!("0 0 {width} {height}")) width=(width) height=(height) role="img" aria-label=(name) {
            title { (name) }
            path.(line.class) d=(path(points, line, scale, peak, (width, height))) {}
        }
    }
}

/// A chart with its scale.
pub(crate) fn chart<P: Timed>(
    points: &[P],
    (title, unit): (&str, &str),
    lines: &[Line<P>],
    scale: &Scale,
) -> Markup {
    let (width, height) = (460.0, 120.0);
    let peak = peak(points, lines);
    let last = |line: &Line<P>| points.last().and_then(line.value).map_or_else(|| "-".to_owned(), short);
    let name = format!("{title} over {}, at most {} {unit}", scale.name, short(peak));
    let until = scale.until.or_else(|| points.last().map(P::at));
    // An image has no links in it.
    let role = if scale.moments.is_empty() { "img" } else { "group" };
    html! {
        figure.chart {
            figcaption {
                strong { (title) }
                @for line in lines {
                    span.key { i.(line.class) {} (line.name) " " b { (last(line)) " " (unit) } }
                }
            }
            svg viewBox=(format!("0 0 {width} {height}")) role=(role) aria-label=(name) preserveAspectRatio="none" {
                @for part in 0..4 {
                    @let y = 0.5 + f64::from(part) * (height - 1.0) / 3.0;
                    path.grid d=(format!("M0 {y:.1}H{width}")) {}
                }
                @for (at, what) in &scale.marks { @if let Some(until) = until {
                    path.mark d=(format!("M{:.1} 0V{height}", scale.x(*at, until, width))) { title { (what) } }
                } }
                @for line in lines {
                    path.(line.class) d=(path(points, line, scale, peak, (width, height))) {}
                }
                (moments(&scale.moments, width, height))
            }
            p.scale { span { (scale.began) } span { "peak " (short(peak)) " " (unit) } span { (scale.ended) } }
        }
    }
}

/// Links to moments, for the mouse; a form beside the charts leads to the same moments.
fn moments(moments: &[(String, String)], width: f64, height: f64) -> Markup {
    let wide = width / moments.iter().map(|_| 1.0).sum::<f64>();
    html! {
        @for ((name, address), x) in moments.iter().zip(std::iter::successors(Some(0.0), |x| Some(x + wide))) {
            a href=(address) aria-label=(name) tabindex="-1" {
                rect.moment x=(format!("{x:.1}")) y="0" width=(format!("{wide:.1}")) height=(height) {}
            }
        }
    }
}

fn peak<P>(points: &[P], lines: &[Line<P>]) -> f64 {
    // A time may be infinite, written by hand.
    let finite = |value: &f64| value.is_finite();
    lines.iter().flat_map(|line| points.iter().filter_map(line.value)).filter(finite).fold(0.0, f64::max)
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

/// Without another end of the time, the newest point stands at the right edge.
fn path<P: Timed>(
    points: &[P],
    line: &Line<P>,
    scale: &Scale,
    peak: f64,
    (width, height): (f64, f64),
) -> String {
    let Some(until) = scale.until.or_else(|| points.last().map(P::at)) else { return String::new() };
    let (mut text, mut before): (String, Option<SystemTime>) = (String::new(), None);
    let mut drawn = 0;
    for point in points {
        let Some(value) = (line.value)(point).filter(|value| value.is_finite()) else { continue };
        let x = scale.x(point.at(), until, width);
        let y = height - 2.0 - value / peak.max(f64::MIN_POSITIVE) * (height - 4.0);
        let is_joined = before
            .is_some_and(|before| point.at().duration_since(before).is_ok_and(|between| between < scale.gap));
        text += &format!("{}{x:.1} {y:.1}", if is_joined { 'L' } else { 'M' });
        before = Some(point.at());
        drawn += 1;
    }
    // One point alone would not be seen.
    if drawn == 1 { text + "h-1" } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Point;

    fn points(values: &[(u64, i64)]) -> Vec<Point> {
        let point = |&(second, backlog_messages): &(u64, i64)| Point {
            at: oncebox_operator::Time(SystemTime::UNIX_EPOCH + Duration::from_secs(second)),
            lag_seconds: 0.0,
            backlog_messages,
            enqueued_per_second: 0.0,
            settled_per_second: 0.0,
        };
        values.iter().map(point).collect()
    }

    #[expect(clippy::cast_precision_loss, reason = "small")]
    const BACKLOG: Line<Point> =
        Line { name: "backlog", class: "one", value: |point| Some(point.backlog_messages as f64) };

    #[test]
    fn a_line_ends_now_and_breaks_where_nobody_looked() {
        let points = points(&[(0, 0), (10, 5), (100, 10), (110, 10)]);
        let text = path(&points, &BACKLOG, &Scale::hour(), 10.0, (100.0, 24.0));
        assert_eq!(text.matches('M').count(), 2, "{text}");
        assert!(text.ends_with("L99.0 2.0"), "{text}");
        assert_eq!(path(&[], &BACKLOG, &Scale::hour(), 0.0, (100.0, 24.0)), "");
        assert!(
            !chart(&points, ("Backlog", "messages"), &[BACKLOG], &Scale::hour())
                .into_string()
                .contains("NaN")
        );
        assert!(!spark(&points[..1], &BACKLOG, &Scale::hour()).into_string().contains("NaN"));
    }

    #[test]
    fn scales_are_short() {
        let texts = [0.0, 0.25, 1.5, 17.4, 1_234.0, 3_400_000.0].map(short);
        assert_eq!(texts, ["0", "0.25", "1.5", "17", "1.2k", "3.4M"]);
    }
}
