//! Lists in the order of a column that the reader chooses by its head.

use std::cmp::Ordering;

use maud::{Markup, html};

use super::list::{GROUPED_MAX, ROWS_MAX};
use crate::{ask::Ask, fields::Fields, html::words::number, problem::Problem};

/// The meaning of `sort`, for the description of the API.
pub(crate) const SORT: &str = "A column of the page; behind a minus from the other end. The first 1000 that match are \
                               sorted, and after is how many to leave out";

/// An order of rows: by a column, from either end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sort {
    pub(crate) by: &'static str,
    pub(crate) is_reversed: bool,
}

impl Sort {
    /// The order that an address asks for; `None` is that in which the list is found.
    pub(crate) fn of(fields: &Fields, columns: &[&'static str]) -> Result<Option<Self>, Problem> {
        let Some(text) = fields.get("sort") else { return Ok(None) };
        let (name, is_reversed) = text.strip_prefix('-').map_or((text, false), |name| (name, true));
        match columns.iter().find(|column| **column == name) {
            Some(by) => Ok(Some(Self { by, is_reversed })),
            None => Err(Problem::Bad(format!("sort: {text:?} is none of {}", columns.join(", ")))),
        }
    }

    /// Sorts rows; those that are equal stay as they were found.
    pub(crate) fn apply<T>(self, rows: &mut [T], compare: impl Fn(&'static str, &T, &T) -> Ordering) {
        rows.sort_by(|one, other| {
            let order = compare(self.by, one, other);
            if self.is_reversed { order.reverse() } else { order }
        });
    }
}

/// How many rows a page asks the database for: its own and one more; or all that are sorted, of
/// which it leaves out as many as `after` says.
pub(crate) fn limit(sort: Option<Sort>) -> usize {
    if sort.is_some() { GROUPED_MAX } else { ROWS_MAX + 1 }
}

/// Sorts rows and keeps a page of them; returns where the next one begins.
pub(crate) fn page<T>(
    sort: Option<Sort>,
    fields: &Fields,
    rows: &mut Vec<T>,
    place: impl Fn(&T) -> String,
    compare: impl Fn(&'static str, &T, &T) -> Ordering,
) -> Result<Option<String>, Problem> {
    let Some(sort) = sort else { return Ok(cut(rows, place)) };
    sort.apply(rows, compare);
    let after: usize = fields.parsed("after")?.unwrap_or(0);
    rows.drain(..after.min(rows.len()));
    Ok(cut(rows, |_| (after + ROWS_MAX).to_string()))
}

/// Keeps a page of rows; returns the place of the last if there are more.
pub(crate) fn cut<T>(rows: &mut Vec<T>, place: impl Fn(&T) -> String) -> Option<String> {
    let is_more = rows.len() > ROWS_MAX;
    rows.truncate(ROWS_MAX);
    rows.last().filter(|_| is_more).map(place)
}

/// The note on a list that is sorted.
pub(crate) fn note(ask: &Ask) -> Markup {
    let most = number(i64::try_from(GROUPED_MAX).unwrap_or(i64::MAX));
    html! { @if ask.query.get("sort").is_some() {
        p.quiet { "Of the first " (most) " that match; further ones are not shown in this order." }
    } }
}

/// The head of a column, which sorts by it, and the other way round when it does already.
pub(crate) fn head(ask: &Ask, by: &str, label: &str) -> Markup {
    let path = ask.path.split('?').next().unwrap_or_default();
    let sort = ask.query.get("sort").unwrap_or_default();
    let (word, next) = match sort {
        sort if sort == by => (Some("ascending"), format!("-{by}")),
        sort if sort.strip_prefix('-') == Some(by) => (Some("descending"), by.to_owned()),
        _ => (None, by.to_owned()),
    };
    let kept = ask.query.0.iter().filter(|(name, _)| !["sort", "after"].contains(&name.as_str()));
    let mut fields: Vec<(&str, &str)> = kept.map(|(name, value)| (name.as_str(), value.as_str())).collect();
    fields.push(("sort", &next));
    html! {
        th aria-sort=[word] {
            a href=(Fields::link(path, &fields)) { (label) }
            @match word { Some("ascending") => " ↑", Some(_) => " ↓", None => "" }
        }
    }
}
