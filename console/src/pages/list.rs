//! The parts that lists share: a filter, groups, actions, and the next page.

use std::collections::HashMap;

use maud::{Markup, html};
use oncebox_operator::Time;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    ask::Ask,
    fields::Fields,
    html::words::{number, time},
};

/// Rows of a page.
pub(crate) const ROWS_MAX: usize = 100;
/// Rows that groups are made of.
pub(crate) const GROUPED_MAX: usize = 1_000;
const GROUPS_MAX: usize = 20;

/// Rows with one reason and one subject, of those that were looked at.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Group {
    /// The first line of their reasons.
    pub(crate) reason: String,
    pub(crate) subject: String,
    rows: i64,
    oldest_at: Time,
}

/// The largest groups, by reason and subject.
pub(crate) fn groups<'a>(rows: impl Iterator<Item = (&'a str, &'a str, Time)>) -> Vec<Group> {
    let mut groups: HashMap<(&str, &str), (i64, Time)> = HashMap::new();
    for (reason, subject, at) in rows {
        let line = reason.split(['\n', '\r']).next().unwrap_or_default();
        let group = groups.entry((line, subject)).or_insert((0, at));
        *group = (group.0 + 1, group.1.min(at));
    }
    let mut groups: Vec<Group> = groups
        .into_iter()
        .map(|((reason, subject), (rows, oldest_at))| Group {
            reason: reason.to_owned(),
            subject: subject.to_owned(),
            rows,
            oldest_at,
        })
        .collect();
    groups.sort_by(|one, other| {
        (other.rows, &one.reason, &one.subject).cmp(&(one.rows, &other.reason, &other.subject))
    });
    groups.truncate(GROUPS_MAX);
    groups
}

/// Groups as a table; `link` leads to the rows of one.
pub(crate) fn show_groups(
    groups: &[Group],
    link: impl Fn(&Group) -> String,
    actions: impl Fn(&Group) -> Markup,
) -> Markup {
    html! {
        div.scroll tabindex="0" { table {
            thead { tr { th.number { "How many" } th { "Reason" } th { "Subject" } th { "Oldest" } th { "Actions" } } }
            tbody { @for group in groups { tr {
                td.number { a href=(link(group)) { (number(group.rows)) } }
                td.long { (group.reason) }
                td.long { (group.subject) }
                td { (time(group.oldest_at)) }
                td { (actions(group)) }
            } } }
        } }
    }
}

/// A form that narrows a list; each field with its label.
pub(crate) fn filter(ask: &Ask, kept: &[(&str, &str)], fields: &[(&str, &str)]) -> Markup {
    let path = ask.path.split('?').next().unwrap_or_default();
    let kept = [kept, &[("sort", ask.query.get("sort").unwrap_or_default())]].concat();
    let kept: Vec<_> = kept.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    html! {
        form.row action=(path) method="get" {
            @for (name, value) in &kept { input type="hidden" name=(name) value=(value); }
            @for (name, label) in fields {
                label { (label) input type="text" name=(name) value=(ask.query.get(name).unwrap_or_default()); }
            }
            button { "Filter" }
            @if fields.iter().any(|(name, _)| ask.query.get(name).is_some()) { a href=(Fields::link(path, &kept)) { "All of them" } }
        }
    }
}

/// The page after this one.
pub(crate) fn more(ask: &Ask, after: Option<&str>) -> Markup {
    let path = ask.path.split('?').next().unwrap_or_default();
    let kept = ask.query.0.iter().filter(|(name, _)| name != "after");
    let mut fields: Vec<(&str, &str)> = kept.map(|(name, value)| (name.as_str(), value.as_str())).collect();
    html! {
        @if let Some(after) = after {
            @let () = fields.push(("after", after));
            p { a.button href=(Fields::link(path, &fields)) { "The next " (ROWS_MAX) } }
        }
    }
}

/// A link to the dry run of an action; nothing where this person may not act.
pub(crate) fn action(ask: &Ask, database: &str, word: &str, fields: &[(&str, &str)]) -> Markup {
    html! {
        @if ask.may_act() {
            a.button href=(Fields::link(&format!("/db/{database}/act"), fields)) { (word) } " "
        }
    }
}

/// A link to the form that edits a message; nothing where this person may not act.
pub(crate) fn edit_link(ask: &Ask, database: &str, fields: &[(&str, &str)]) -> Markup {
    html! { @if ask.may_act() { a.button href=(Fields::link(&format!("/db/{database}/edit"), fields)) { "edit" } } }
}

/// Why there are no buttons.
pub(crate) fn why_no_actions(ask: &Ask) -> Markup {
    let text = match (ask.may_act(), ask.console.settings.allows_actions) {
        (true, _) => return html! {},
        (false, true) => "You read here: your role is reader.",
        (false, false) => "This console only looks: --allow-actions lets operators act.",
    };
    html! { p.quiet { (text) } }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_largest_group_comes_first_with_its_oldest() {
        let at = |second| Time(std::time::UNIX_EPOCH + Duration::from_secs(second));
        let rows = [("full", "a", at(9)), ("full", "b", at(2)), ("full", "b", at(1)), ("gone", "a", at(5))];
        let groups = groups(rows.into_iter());
        let seen: Vec<_> = groups
            .iter()
            .map(|group| (&*group.reason, &*group.subject, group.rows, group.oldest_at))
            .collect();
        assert_eq!(seen, [("full", "b", 2, at(1)), ("full", "a", 1, at(9)), ("gone", "a", 1, at(5))]);
    }
}
