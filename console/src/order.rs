//! Orders of operators, read from a form or a document, and the commands that do the same.

use oncebox_connect::error::RelayError;
use oncebox_operator::{
    Action, Done, EditOf, NOTE_BYTES_MAX, Operator, Order, RowSet, Shown, UndoRow, Verb, is_chosen,
};

use crate::{fields::Fields, html::words::number, problem::Problem};

/// The field that has rows retried by a canary.
pub(crate) const CANARY: &str = "canary";

/// A field that no form and no document has.
pub(crate) const REPLY: &str = "reply";

/// Reads it from the fields of an address, a form or a document.
pub(crate) fn parse(fields: &Fields) -> Result<Order, Problem> {
    let [kind, action] = ["kind", "action"].map(|name| fields.get(name).unwrap_or_default());
    let verb = Action::named(kind, action)
        .ok_or_else(|| Problem::Bad(format!("there is no action {action:?} on {kind:?}")))?;
    let (mut selected, mut is_all) = (Vec::new(), false);
    for (name, value) in fields.given() {
        match name.as_str() {
            "kind" | "action" | "token" | "note" | "rate" | "shown" | "word" => {}
            "all" => {
                is_all = match value.as_str() {
                    "1" | "true" => true,
                    "0" | "false" => false,
                    _ => return Err(Problem::Bad(format!("all: {value:?} is neither true nor false"))),
                }
            }
            // It is data of a saga, and the page of a job shows its fields.
            REPLY => return Err(Problem::Bad(format!("{REPLY}: the command alone takes one"))),
            name if Fields::is_exact(name) => selected.push((name.to_owned(), value.clone())),
            name => selected.push((name.to_owned(), value.trim().to_owned())),
        }
    }
    let mut order = Order::new(verb, is_all, selected).map_err(Problem::Bad)?;
    order.note = fields.text("note");
    order.rate = fields.parsed("rate")?;
    order.shown = fields.parsed::<Shown>("shown")?;
    let problem = match (order.rate, &order.note) {
        (_, Some(note)) if note.len() > NOTE_BYTES_MAX => {
            format!("the note has more than {NOTE_BYTES_MAX} bytes")
        }
        (Some(rate), _) if !(0.001..=1e6).contains(&rate) => {
            "the rate is not a number of messages a second".to_owned()
        }
        (Some(_), _) if !verb.has_rate() => format!("rate: {} takes no such field", verb.command),
        (Some(_), _) if order.canary.is_some() => "rate: a canary goes at its own pace".to_owned(),
        (None, _) if verb == Verb::Throttle => "rate: how many messages a second?".to_owned(),
        _ => return Ok(order),
    };
    Err(Problem::Bad(problem))
}

/// `1 dead letter`, `2 dead letters`.
pub(crate) fn counted(verb: Verb, count: u64) -> String {
    verb.counted(&number(i64::try_from(count).unwrap_or(i64::MAX)))
}

/// The rows of a discard, each with the reason why it cannot come back.
pub(crate) async fn undo_rows(order: &Order, operator: &Operator) -> Result<Vec<UndoRow>, RelayError> {
    let mut found = Vec::new();
    for part in order.parts().into_iter().filter(|_| order.verb == Verb::Undo) {
        let id = Fields(part).parsed("id").ok().flatten().unwrap_or_default();
        found.extend(operator.undo_rows(id).await?);
    }
    Ok(found)
}

/// The message that a form edits.
pub(crate) fn edit_of(fields: &Fields) -> Result<EditOf, Problem> {
    let of = match fields.get("kind") {
        Some("dead-letters") => fields.parsed("id")?.map(EditOf::Letter),
        _ => fields.text("key").map(EditOf::Message),
    };
    of.ok_or_else(|| Problem::Bad("a dead letter is edited by its id, a dead message by its key".to_owned()))
}

/// The text as it was before a form has folded its line ends.
pub(crate) fn unfolded(text: &str) -> String {
    text.replace("\r\n", "\n")
}

/// How an order ended, and the number of things that were changed.
pub(crate) fn told(
    order: &Order,
    done: &Done,
    rows: Option<&RowSet>,
) -> Result<(String, Option<u64>), Problem> {
    let verb = order.verb;
    if order.canary.is_some() {
        let text = match done.canary {
            Some(id) => format!("began canary {id}: see the page of jobs"),
            None => "nothing was left to retry, and no canary was begun".to_owned(),
        };
        return Ok((text, None));
    }
    if let Some(key) = &done.key {
        return Ok((format!("edited; its key is {key}"), Some(1)));
    }
    if !verb.has_rows() {
        let warnings: String = done.warnings.iter().map(|warning| format!("; {warning}")).collect();
        return Ok((format!("{} {}{warnings}", verb.past, verb.things), None));
    }
    if done.incomplete > 0 && verb == Verb::BuryFailing {
        return Err(Problem::Conflict(format!(
            "buried {}; the payloads of the others are in no bucket: have them put again with \
             `oncebox outbox replay --key`, where they were enqueued",
            counted(verb, done.done)
        )));
    }
    let count = if verb == Verb::BuryFailing { done.done + done.gone } else { done.done };
    let late = match rows.map_or(0, RowSet::late) {
        0 => String::new(),
        1 => "; 1 that came since they were shown stays".to_owned(),
        late => format!(
            "; {} that came since they were shown stay",
            number(i64::try_from(late).unwrap_or(i64::MAX))
        ),
    };
    let late = match done.pending {
        0 => late,
        pending => {
            format!("{late}; {} whose last replay is still to be sent left out", counted(verb, pending))
        }
    };
    let late = match done.edited {
        0 => late,
        edited => format!(
            "{late}; {} of them had an edit in their place, and nobody handles them",
            counted(verb, edited)
        ),
    };
    let about = done.about_losses().map(|about| format!(": {about}")).unwrap_or_default();
    Ok((format!("{} {}{late}{about}", verb.past, counted(verb, count)), Some(count)))
}

/// The fields of a form, or of an address, that asks for the same.
pub(crate) fn hidden(order: &Order) -> Vec<(String, String)> {
    let [kind, action] = order.verb.names();
    let mut all = vec![("kind".to_owned(), kind.to_owned()), ("action".to_owned(), action.to_owned())];
    all.extend(order.fields.clone());
    if !order.selects() {
        all.push(("all".to_owned(), "1".to_owned()));
    }
    all
}

/// The commands that do the same; one alone confirms the rows that are shown.
pub(crate) fn commands(order: &Order, by: &str, database: &str, shown: Option<&str>) -> Vec<Vec<String>> {
    let (verb, parts) = (order.verb, order.parts());
    // An undo means its rows anyway.
    let shown = shown.filter(|_| parts.len() == 1 && !verb.takes_id_alone());
    let command = |part: &Vec<(String, String)>| {
        let mut words = vec!["oncebox".to_owned()];
        words.extend(verb.command.split(' ').map(str::to_owned));
        for (name, value) in part {
            words.extend(Some(format!("--{name}")).filter(|_| !verb.takes_id_alone() || !is_chosen(name)));
            // The others have a value.
            words.extend(Some(value.clone()).filter(|_| !verb.is_flag(name)));
        }
        if order.payload.is_some() {
            words.extend(["--payload".to_owned(), "FILE".to_owned()]);
        }
        if !order.selects() {
            words.push("--all".to_owned());
        }
        words.extend(shown.iter().flat_map(|token| ["--confirm".to_owned(), (*token).to_owned()]));
        words.extend(order.rate.iter().flat_map(|rate| ["--rate".to_owned(), rate.to_string()]));
        words.extend(["--database".to_owned(), database.to_owned(), "--by".to_owned(), by.to_owned()]);
        words.extend(order.note.iter().flat_map(|note| ["--note".to_owned(), note.clone()]));
        words
    };
    parts.iter().map(command).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(query: &str, expected: Result<usize, &str>) {
        match (parse(&Fields::parse(query)), expected) {
            (Ok(order), Ok(parts)) => assert_eq!(order.parts().len(), parts, "{query}"),
            (Err(problem), Err(part)) => {
                assert!(problem.text().contains(part), "{query}: {}", problem.text())
            }
            (found, _) => panic!("{query}: {found:?}"),
        }
    }

    #[test]
    fn an_order_is_read_from_the_fields_of_an_address() {
        check("kind=dead&action=retry&all=1", Ok(1));
        check("kind=dead&action=retry&key=a&key=b&note=INC-7&rate=5", Ok(2));
        check("kind=dead&action=retry&reason=no+stream&subject=a.*", Ok(1));
        check("kind=dead&action=retry&all=true", Ok(1));
        check("kind=dead&action=retry&all=false", Err("nothing is selected"));
        check("kind=dead&action=retry&all=no", Err("neither true nor false"));
        check("kind=dead&action=retry&reason=", Err("nothing is selected"));
        check("kind=dead&action=bury&all=1", Err("there is no action"));
        check("kind=dead&action=retry&all=1&rate=0", Err("rate"));
        check("kind=dead&action=retry&all=1&canary=1&rate=5", Err("its own pace"));
        check("kind=dead&action=edit&key=k&rate=5", Err("rate"));
        check("kind=dead-letters&action=edit&id=7&payload={}&header=a=b&header=c=d&remove-header=e", Ok(1));
        check("kind=dead-letters&action=discard&reason-is=", Ok(1));
        check("kind=dead&action=retry&id=7&shown=x", Err("shown:"));
        check("kind=sagas&action=abandon&all=1&rate=5", Err("takes no such field"));
        check("kind=pauses&action=pause&all=1&rate=5", Err("takes no such field"));
        check("kind=pauses&action=throttle&all=1", Err("how many"));
        check("kind=sagas&action=skip&key=k&step=s&reply={}", Err("the command alone"));
    }
}
