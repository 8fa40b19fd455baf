//! Times, numbers, states and commands as people read them.

use std::time::SystemTime;

use maud::{Markup, html};
use oncebox_connect::clock::with_text;

/// A time in UTC; the script shows it in the reader's zone.
pub(crate) fn time(at: impl Into<SystemTime>) -> Markup {
    let at = with_text(at.into());
    let exact = humantime::format_rfc3339_micros(at).to_string();
    let text = humantime::format_rfc3339_seconds(at).to_string().replace('T', " ").replace('Z', " UTC");
    html! { time datetime=(exact) title=(text) { (text) } }
}

pub(crate) fn time_or(at: Option<impl Into<SystemTime>>, none: &str) -> Markup {
    at.map_or_else(|| html! { span.quiet { (none) } }, time)
}

/// `0.3 s`, `45 s`, `12 min`, `3.1 h`, `2.0 d`.
pub(crate) fn span(seconds: f64) -> String {
    match seconds {
        s if s < 0.001 => "0 s".to_owned(),
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7_200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3_600.0),
        s => format!("{:.1} d", s / 86_400.0),
    }
}

/// With a thin blank between thousands.
pub(crate) fn number(count: i64) -> String {
    let digits = count.unsigned_abs().to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push('\u{2009}');
        }
        text.push(digit);
    }
    if count < 0 { format!("-{text}") } else { text }
}

pub(crate) fn bytes(count: i64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "for a person")]
    let count = count as f64;
    match count {
        n if n < 1_024.0 => format!("{n:.0} B"),
        n if n < 1_048_576.0 => format!("{:.1} KiB", n / 1_024.0),
        n => format!("{:.1} MiB", n / 1_048_576.0),
    }
}

/// A number that is loud only above zero.
pub(crate) fn count(count: i64, class: &str) -> Markup {
    match count {
        0 => html! { span.zero { "0" } },
        _ => html! { strong class=(class) { (number(count)) } },
    }
}

/// A state as a badge: its word, and a colour.
pub(crate) fn state(word: &str) -> Markup {
    let class = match word {
        "well" | "settled" | "completed" | "done" | "sent again" => "good",
        "running" | "due" | "delayed" | "sent" | "reported" | "note" | "on its way" | "leased" => "calm",
        "parked" | "waiting" | "behind" | "failing" | "compensating" | "undoing" | "look" | "warning"
        | "snoozed" | "unknown" | "being sent again" => "warn",
        "dead" | "stuck" | "quarantined" | "failed" | "undo-failed" | "needs somebody" | "problem"
        | "held" | "away" => "bad",
        _ => "quiet",
    };
    html! { span.badge.(class) { (word) } }
}

/// The command that does or shows the same.
pub(crate) fn command(words: &[&str]) -> Markup {
    let line = words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
    html! {
        p.command { span.quiet { "on the command line" } " " code { (line) } }
    }
}

/// As a shell takes one word: operators copy the line.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Why a list is empty, and where its rows would come from.
pub(crate) fn empty(text: &str) -> Markup {
    html! { p.empty { (text) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_short() {
        let spans = [0.0, 0.04, 45.2, 600.0, 9_000.0, 400_000.0].map(span);
        assert_eq!(spans, ["0 s", "0.0 s", "45 s", "10 min", "2.5 h", "4.6 d"]);
        let numbers = [0, 999, 1_000, 1_234_567, -4_711].map(number);
        assert_eq!(numbers, ["0", "999", "1\u{2009}000", "1\u{2009}234\u{2009}567", "-4\u{2009}711"]);
        assert_eq!([17, 2_048, 3_145_728].map(bytes), ["17 B", "2.0 KiB", "3.0 MiB"]);
    }

    #[test]
    fn a_command_can_be_copied() {
        let text = command(&["oncebox", "trace", "a';reboot;'"]).into_string();
        assert!(text.contains(r"oncebox trace 'a'\'';reboot;'\'''"), "{text}");
        let text = state("<b>").into_string();
        assert!(text.contains("&lt;b&gt;"), "{text}");
    }
}
