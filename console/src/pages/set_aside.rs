//! `/db/NAME/set-aside`: parked, dead and failing messages, and dead letters of inboxes.

use std::{cmp::Ordering, sync::Arc};

use maud::{Markup, html};
use oncebox_operator::{Action, DeadLetter, FailingMessage, Kind, Operator, ParkedMessage, Time};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::{
    list::{self, GROUPED_MAX, Group, ROWS_MAX, action, filter, more, why_no_actions},
    sort::{self, Sort, head},
};
use crate::{
    ask::Ask,
    fields::Fields,
    html::{
        layout::key_link,
        words::{self, bytes, empty, state, time, time_or},
    },
    problem::Problem,
    view::View,
};

/// The kinds of things that are set aside, and their titles.
const KINDS: [(Kind, &str); 4] = [
    (Kind::Parked, "Parked"),
    (Kind::Dead, "Dead"),
    (Kind::Failing, "Failing in an inbox"),
    (Kind::Letters, "Dead letters"),
];

/// The columns that sort them.
const COLUMNS: [&str; 9] =
    ["key", "state", "subject", "owner", "reason", "tries", "since", "next", "payload"];

/// The list of one kind.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SetAside {
    database: String,
    #[serde(serialize_with = "name")]
    #[schemars(with = "String")]
    kind: Kind,
    /// Of the first 1,000, on the first page.
    groups: Vec<Group>,
    rows: Rows,
    /// Where the next page begins.
    after: Option<String>,
}

#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
enum Rows {
    Messages(Vec<ParkedMessage>),
    Failing(Vec<FailingMessage>),
    Letters(Vec<DeadLetter>),
}

/// A row of any kind.
struct Row<'a> {
    key: Option<&'a str>,
    id: String,
    state: &'a str,
    subject: &'a str,
    /// The inbox, or the ordering key.
    owner: &'a str,
    reason: &'a str,
    tries: i64,
    at: Time,
    next_at: Option<Time>,
    payload_bytes: Option<i64>,
    /// How many wait for a dead letter.
    behind: Option<i64>,
}

fn name<S: Serializer>(kind: &Kind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(kind.name())
}

pub(crate) async fn load(ask: Arc<Ask>) -> Result<SetAside, Problem> {
    let database = ask.database()?;
    let wanted = ask.query.get("kind").unwrap_or("parked");
    let (kind, _) = *KINDS.iter().find(|(kind, _)| kind.name() == wanted).ok_or_else(|| {
        Problem::Bad(format!("kind: {wanted:?} is none of parked, dead, failing, dead-letters"))
    })?;
    let sort = Sort::of(&ask.query, &COLUMNS)?;
    let after = ask.query.get("after").filter(|_| sort.is_none());
    let limit = if after.is_some() { ROWS_MAX + 1 } else { GROUPED_MAX };
    let fields = &ask.query;
    let selection = fields.selection(kind, after.is_some())?;
    let look = async |operator: &mut Operator| {
        Ok(match kind {
            Kind::Failing => Rows::Failing(operator.failing(&selection, limit).await?),
            Kind::Letters => Rows::Letters(operator.dead_letters(&selection, limit).await?),
            _ => Rows::Messages(operator.parked(&selection, limit).await?),
        })
    };
    let mut rows = database.look(look).await?;
    let groups = if fields.get("after").is_none() { rows.groups() } else { Vec::new() };
    let after = rows.page(sort, fields)?;
    Ok(SetAside { database: database.name().to_owned(), kind, groups, rows, after })
}

impl Rows {
    /// Keeps a page; returns where the next one begins.
    fn page(&mut self, sort: Option<Sort>, fields: &Fields) -> Result<Option<String>, Problem> {
        match self {
            Self::Messages(rows) => sort::page(
                sort,
                fields,
                rows,
                |row| row.id.to_string(),
                |by, one, other| of_message(one).compare(by, &of_message(other)),
            ),
            Self::Letters(rows) => sort::page(
                sort,
                fields,
                rows,
                |row| row.id.to_string(),
                |by, one, other| of_letter(one).compare(by, &of_letter(other)),
            ),
            Self::Failing(rows) => sort::page(
                sort,
                fields,
                rows,
                |row| row.place().to_string(),
                |by, one, other| of_failing(one).compare(by, &of_failing(other)),
            ),
        }
    }

    fn groups(&self) -> Vec<Group> {
        let rows = self.rows();
        list::groups(rows.iter().map(|row| (row.reason, row.subject, row.at)))
    }

    fn rows(&self) -> Vec<Row<'_>> {
        match self {
            Self::Messages(rows) => rows.iter().map(of_message).collect(),
            Self::Failing(rows) => rows.iter().map(of_failing).collect(),
            Self::Letters(rows) => rows.iter().map(of_letter).collect(),
        }
    }
}

impl Row<'_> {
    fn compare(&self, by: &str, other: &Self) -> Ordering {
        match by {
            "key" => self.key.cmp(&other.key),
            "state" => self.state.cmp(other.state),
            "subject" => self.subject.cmp(other.subject),
            "owner" => self.owner.cmp(other.owner),
            "reason" => self.reason.cmp(other.reason),
            "tries" => self.tries.cmp(&other.tries),
            "next" => self.next_at.cmp(&other.next_at),
            "payload" => self.payload_bytes.cmp(&other.payload_bytes),
            _ => self.at.cmp(&other.at),
        }
    }
}

fn of_message(message: &ParkedMessage) -> Row<'_> {
    Row {
        key: Some(&message.key),
        id: message.id.to_string(),
        state: message.state,
        subject: &message.subject,
        owner: message.ordering_key.as_deref().unwrap_or_default(),
        reason: &message.reason,
        tries: message.attempts.into(),
        at: message.died_at.unwrap_or(message.created_at),
        next_at: message.next_attempt_at,
        payload_bytes: Some(message.payload_bytes),
        behind: None,
    }
}

fn of_failing(message: &FailingMessage) -> Row<'_> {
    Row {
        key: Some(&message.key),
        id: message.id.clone(),
        state: "failing",
        subject: message.subject.as_deref().unwrap_or_default(),
        owner: &message.scope,
        reason: &message.reason,
        tries: message.failures,
        at: message.failed_at,
        next_at: message.due_at,
        payload_bytes: None,
        behind: None,
    }
}

fn of_letter(letter: &DeadLetter) -> Row<'_> {
    Row {
        key: letter.key.as_deref(),
        id: letter.id.to_string(),
        state: if letter.edit.is_some() { "edited" } else { "dead" },
        subject: &letter.subject,
        owner: &letter.scope,
        reason: &letter.reason,
        tries: letter.deliveries,
        at: letter.died_at,
        next_at: None,
        payload_bytes: Some(letter.payload_bytes),
        behind: letter.behind,
    }
}

impl View for SetAside {
    fn title(&self) -> String {
        format!("Set aside in {}", self.database)
    }

    fn body(&self, ask: &Ask) -> Markup {
        let path = format!("/db/{}/set-aside", self.database);
        let fields: &[(&str, &str)] = match self.kind {
            Kind::Failing | Kind::Letters => &[
                ("key", "Key"),
                ("scope", "Inbox"),
                ("subject", "Subject, also a.*"),
                ("reason", "Reason has"),
            ],
            _ => &[
                ("key", "Key"),
                ("ordering-key", "Ordering key"),
                ("subject", "Subject, also a.*"),
                ("reason", "Reason has"),
            ],
        };
        html! {
            nav aria-label="Kinds" {
                @for (kind, title) in KINDS {
                    a href=(format!("{path}?kind={}", kind.name())) aria-current=[(kind == self.kind).then_some("page")] { (title) }
                }
            }
            (filter(ask, &[("kind", self.kind.name())], fields))
            @for (name, value) in exact(ask) {
                p { (if name == "reason-is" { "Reason is " } else { "Subject is " })
                    @if value.is_empty() { "empty" } @else { code { (value) } } }
            }
            @if !exact(ask).is_empty() { p { a href=(format!("{path}?kind={}", self.kind.name())) { "All of them" } } }
            (why_no_actions(ask))
            @if self.rows.rows().is_empty() { (empty(self.nothing())) }
            @else {
                @if !self.groups.is_empty() {
                    h2 { "By reason and subject" }
                    p.quiet { "Of the first 1,000 that match." }
                    (list::show_groups(&self.groups, |group| self.group_link(&path, group), |group| self.of_group(ask, group)))
                }
                h2 { "One by one" }
                (self.of_all(ask, fields))
                (sort::note(ask))
                (self.table(ask))
                (more(ask, self.after.as_deref()))
            }
            (words::command(&self.line(ask, fields).iter().map(String::as_str).collect::<Vec<_>>()))
        }
    }
}

/// The group that the rows are of.
fn exact(ask: &Ask) -> Vec<(&'static str, String)> {
    let given = ["reason-is", "subject-is"].into_iter();
    given.filter_map(|name| Some((name, ask.query.exact(name)?))).collect()
}

impl SetAside {
    /// The actions on many of them.
    fn actions(&self) -> impl Iterator<Item = &'static str> {
        Action::on(self.kind).filter(|verb| !verb.is_edit()).map(|verb| verb.word())
    }

    /// The command that lists the same.
    fn line(&self, ask: &Ask, fields: &[(&str, &str)]) -> Vec<String> {
        let given = fields.iter().filter_map(|(name, _)| Some((*name, ask.query.text(name)?)));
        let given = given.chain(exact(ask)).flat_map(|(name, value)| [format!("--{name}"), value]);
        let database = ["--database".to_owned(), self.database.clone()];
        let command = format!("oncebox {} list", self.kind.command());
        command.split(' ').map(str::to_owned).chain(given).chain(database).collect()
    }

    fn nothing(&self) -> &'static str {
        match self.kind {
            Kind::Dead => {
                "Messages that relays gave up stand here, until an operator retries or discards them."
            }
            Kind::Failing => "Messages stand here whose handlers failed, and that are delivered again.",
            Kind::Letters => "Messages that inboxes gave up stand here, whole and with the reason.",
            _ => {
                "Messages stand here that a stream refused and that are tried again, and those that wait behind them."
            }
        }
    }

    fn group_link(&self, path: &str, group: &Group) -> String {
        Fields::link(
            path,
            &[("kind", self.kind.name()), ("reason-is", &group.reason), ("subject-is", &group.subject)],
        )
    }

    fn of_group(&self, ask: &Ask, group: &Group) -> Markup {
        let kind = self.kind.name();
        html! { @for word in self.actions() {
            (action(ask, &self.database, word, &[
                ("kind", kind), ("action", word), ("reason-is", &group.reason), ("subject-is", &group.subject),
            ]))
        } }
    }

    /// The actions on all that match the filter, not only on this page.
    fn of_all(&self, ask: &Ask, fields: &[(&str, &str)]) -> Markup {
        let given = fields.iter().filter_map(|(name, _)| ask.query.get(name).map(|value| (*name, value)));
        let exact = exact(ask);
        let given: Vec<(&str, &str)> =
            given.chain(exact.iter().map(|(name, value)| (*name, value.as_str()))).collect();
        let which = if given.is_empty() { "all" } else { "all that match" };
        html! { p { @for word in self.actions() {
            @let fields = [&[("kind", self.kind.name()), ("action", word)][..], &given[..], if given.is_empty() { &[("all", "1")] } else { &[] }].concat();
            (action(ask, &self.database, &format!("{word} {which}"), &fields))
        } } }
    }

    fn table(&self, ask: &Ask) -> Markup {
        let owner =
            if [Kind::Failing, Kind::Letters].contains(&self.kind) { "Inbox" } else { "Ordering key" };
        html! {
            form action=(format!("/db/{}/act", self.database)) method="get" {
                input type="hidden" name="kind" value=(self.kind.name());
                div.scroll tabindex="0" { table {
                    thead { tr {
                        @if ask.may_act() { th { input type="checkbox" hidden data-all="id" aria-label="Choose all of this page"; } }
                        @for (by, label) in COLUMNS.into_iter().zip(["Key", "State", "Subject", owner, "Reason", "Tries", "Since", "Next", "Payload"]) {
                            (head(ask, by, label))
                        }
                    } }
                    tbody { @for row in self.rows.rows() { (self.row(ask, &row)) } }
                } }
                @if ask.may_act() {
                    p { "Of the chosen ones: " @for word in self.actions() { button name="action" value=(word) { (word) } " " } }
                }
            }
        }
    }

    fn row(&self, ask: &Ask, row: &Row<'_>) -> Markup {
        let name = row.key.unwrap_or(&row.id);
        let link = match self.kind {
            Kind::Letters => format!("/db/{}/letter?id={}", self.database, row.id),
            _ => Fields::link(&format!("/db/{}/message", self.database), &[("key", name)]),
        };
        html! { tr {
            @if ask.may_act() { td {
                input type="checkbox" name="id" value=(row.id) aria-label=(format!("Choose {name}"));
            } }
            td.long { @match row.key { Some(key) => (key_link(key)), None => a href=(link) { "none: letter " (row.id) } } }
            td { (state(row.state)) @if let Some(behind) = row.behind.filter(|behind| *behind > 0) { " " (behind) " behind" } }
            td.long { (row.subject) }
            td.long { (row.owner) }
            td.long { (row.reason) }
            td.number { (row.tries) }
            td { (time(row.at)) }
            td { (time_or(row.next_at, "")) }
            td.number { @if row.payload_bytes.is_some() || self.kind == Kind::Failing {
                a href=(link) { @match row.payload_bytes { Some(count) => (bytes(count)), None => "show" } }
            } @match (self.kind, row.key) {
                (Kind::Dead, Some(key)) => { " " (list::edit_link(ask, &self.database, &[("kind", "dead"), ("key", key)])) },
                (Kind::Letters, Some(_)) => { " " (list::edit_link(ask, &self.database, &[("kind", "dead-letters"), ("id", &row.id)])) },
                _ => {},
            } }
        } }
    }
}
