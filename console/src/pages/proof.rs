//! `/db/NAME/proof`: whether the messages of a time are in their streams and were handled; each gap
//! with its keys.

use std::{sync::Arc, time::Duration};

use maud::{Markup, html};
use oncebox_operator::{Moment, Proof, ProofOf};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::timeout;

use super::list::filter;
use crate::{
    ask::Ask,
    html::{
        layout::key_link,
        words::{self, empty, number, state, time},
    },
    problem::Problem,
    view::View,
};

/// Keys that a gap shows.
const KEYS_MAX: usize = 20;
/// A proof reads the log, and streams: it takes longer than other pages.
const PROOF_MAX: Duration = Duration::from_secs(120);

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "DatabaseProof")]
pub(crate) struct Shown {
    database: String,
    /// `None` until a time is given.
    proof: Option<Proof>,
}

pub(crate) async fn load(ask: Arc<Ask>) -> Result<Shown, Problem> {
    let database = ask.database()?;
    let name = database.name().to_owned();
    let Some(since) = ask.query.parsed::<Moment>("since")? else {
        return Ok(Shown { database: name, proof: None });
    };
    let until = ask.query.parsed::<Moment>("until")?;
    let busy =
        |_| Problem::Conflict(format!("{name}: another proof is being made; try again when it is done"));
    let _alone = database.proofs.try_acquire().map_err(busy)?;
    let mut turn = database.turn().await?;
    let operator = turn.operator();
    let now = database.answer(operator.now()).await?;
    let (since, until) = (since.at(now), until.map_or(now, |until| until.at(now)).min(now));
    if since >= until {
        return Err(Problem::Bad("since is not before until, or not before now".to_owned()));
    }
    let proving =
        operator.prove(database.member.config.as_ref(), ProofOf { since, until, keys_max: KEYS_MAX });
    let slow = |_| {
        Problem::Away(format!(
            "{name}: no proof within {} s; take a shorter time, or `oncebox proof`",
            PROOF_MAX.as_secs()
        ))
    };
    let proof = timeout(PROOF_MAX, proving).await.map_err(slow)?;
    let proof = proof.map_err(|error| Problem::of(&name, &error))?;
    turn.keep().await;
    Ok(Shown { database: name, proof: Some(proof) })
}

impl View for Shown {
    fn title(&self) -> String {
        format!("Proof of {}", self.database)
    }

    fn body(&self, ask: &Ask) -> Markup {
        let since = ask.query.get("since").unwrap_or("24h");
        html! {
            (filter(ask, &[], &[("since", "Since: 24h, or 2026-11-29T00:00:00Z"), ("until", "Until; now without one")]))
            @match &self.proof {
                None => (empty("Give a time: what was enqueued in it is looked for in its streams, and in the inboxes of this database. That reads the log once, and each stream from that time on.")),
                Some(proof) => (shown(proof)),
            }
            (words::command(&["oncebox", "proof", "--since", since, "--database", &self.database]))
        }
    }
}

fn shown(proof: &Proof) -> Markup {
    html! {
        p {
            (state(if proof.is_whole { "well" } else { "needs somebody" })) " "
            @if proof.is_whole { "There is no gap." } @else { "There are gaps: the keys lead to them." }
            " Messages enqueued from " (time(proof.since)) " to " (time(proof.until)) ", looked at from " (time(proof.made_at)) " on."
        }
        h2 { "Subjects" }
        (table(&["Subject", "Enqueued", "Stored", "Waiting", "Dead", "Discarded"], proof.subjects.iter().map(|one| {
            (vec![&*one.subject], vec![one.enqueued, one.stored, one.waiting, one.dead, one.discarded], &one.gap)
        })))
        h2 { "Streams" }
        (table(&["Stream", "Looked for", "Missing", "Different", "Let go"], proof.streams.iter().map(|one| {
            let of = &one.verified;
            (vec![&*of.stream], vec![of.messages, of.missing, of.different, of.unproven], &one.gap)
        })))
        h2 { "Inboxes" }
        (table(&["Inbox", "Subject", "Stored", "Handled", "Rejected", "Dead", "Missing"], proof.inboxes.iter().map(|one| {
            (vec![&*one.inbox, &*one.subject], vec![one.stored, one.handled, one.rejected, one.dead, one.missing], &one.gap)
        })))
        h2 { "Not proved" }
        ul { @for text in &proof.not_proven { li { (text) } } }
    }
}

type Row<'a> = (Vec<&'a str>, Vec<u64>, &'a Vec<String>);

/// Names, counts, and the keys of the gap.
fn table<'a>(heads: &[&str], rows: impl ExactSizeIterator<Item = Row<'a>>) -> Markup {
    let count = |count: u64| number(i64::try_from(count).unwrap_or(i64::MAX));
    html! {
        @if rows.len() == 0 { (empty("None.")) } @else {
            div.scroll tabindex="0" { table {
                thead { tr { @for head in heads { th { (head) } } th { "Gap" } } }
                tbody { @for (names, counts, gap) in rows { tr {
                    @for name in names { td.long { (name) } }
                    @for of in counts { td.number { (count(of)) } }
                    td.long { @for key in gap { (key_link(key)) " " } }
                } } }
            } }
        }
    }
}
