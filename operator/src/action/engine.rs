//! Looking at the rows of a kind page by page: to list them, to show those that an action would
//! change, and to act on them.

use std::time::SystemTime;

use oncebox_connect::error::RelayError;

use super::{catalogue::Verb, done::Done};
use crate::{
    Operator, Result,
    resend::Resender,
    selection::{Place, Selection},
    shown::RowSet,
};

/// A part of the rows that are looked at, one page after another.
#[derive(Debug)]
pub(crate) struct Scan {
    /// Of a kind that is in lanes, those that it looks at.
    pub(crate) lanes: Vec<i16>,
    /// The place after which the next page begins.
    pub(crate) after: Place,
    /// The id that it ends with.
    pub(crate) last: i64,
}

impl Scan {
    /// Of all rows from a selection's page on.
    pub(crate) fn from(of: &Selection) -> Self {
        let after = of.after.clone().unwrap_or(Place::Id(0));
        Self { lanes: Vec::new(), after, last: i64::MAX }
    }
}

/// The selected rows of those that were looked at.
pub(crate) struct Page<T> {
    pub(crate) rows: Vec<T>,
    /// The place after which the next page begins; `None` when this was the last.
    pub(crate) next: Option<Place>,
    /// Rows that were left out, since they were asked for before under the same name.
    pub(crate) before: u64,
    /// Rows that were left out, since their replay is still to be sent.
    pub(crate) pending: u64,
}

impl<T> Page<T> {
    pub(crate) fn new(rows: Vec<T>, next: Option<Place>) -> Self {
        Self { rows, next, before: 0, pending: 0 }
    }
}

/// An action under way.
pub(crate) struct Acting<'a> {
    pub(crate) verb: Verb,
    pub(crate) of: &'a Selection,
    /// Of an action that needs NATS.
    pub(crate) resender: Option<&'a Resender>,
    /// Whether it is left to a canary.
    pub(crate) is_canary: bool,
}

impl Acting<'_> {
    /// Refuses an action that the kind of its rows does not know: nothing is done then.
    pub(crate) fn is_one_of(&self, verbs: &[Verb]) -> Result<()> {
        match verbs.contains(&self.verb) {
            true => Ok(()),
            false => {
                let command = self.verb.command;
                Err(RelayError::Refused(format!("nobody can {command} these rows; nothing was done")))
            }
        }
    }
}

/// A row of a kind that is listed, shown and acted on.
pub(crate) trait Listed: Sized {
    /// The scans of a selection: one, or, where actions take a lane's lock, one for each lane.
    async fn scans(_: &Operator, of: &Selection, _to_act: bool) -> Result<Vec<Scan>> {
        Ok(vec![Scan::from(of)])
    }

    async fn page(operator: &Operator, of: &Selection, scan: &Scan) -> Result<Page<Self>>;

    /// Its name in the set of an action.
    fn name(&self, acting: &Acting<'_>) -> String;

    /// When it came to be such a row.
    fn came_at(&self) -> SystemTime;

    /// Whether the action can be done to it.
    fn can(&self, _: &Acting<'_>) -> bool {
        true
    }

    /// Whether the action would leave it alone for now.
    fn is_busy(&self, _: &Acting<'_>) -> bool {
        false
    }

    /// Why the action cannot be done to it, nor to the others with it.
    fn refusal(&self, _: &Acting<'_>) -> Option<String> {
        None
    }

    /// Whether many are changed in one transaction, or each in one of its own.
    fn in_batches(_: Verb) -> bool {
        true
    }

    /// Changes rows of one scan in one transaction. The statement looks again at each: another
    /// operator may act as well.
    async fn change(
        operator: &mut Operator,
        acting: &Acting<'_>,
        rows: &[Self],
        done: &mut Done,
    ) -> Result<()>;
}

impl Operator {
    /// Rows that are selected and meant, `limit` at most.
    pub(crate) async fn list<T: Listed>(
        &self,
        of: &Selection,
        limit: usize,
        is_meant: impl Fn(&T) -> bool,
    ) -> Result<Vec<T>> {
        let mut found = Vec::new();
        for mut scan in T::scans(self, of, false).await? {
            while found.len() < limit {
                let page = T::page(self, of, &scan).await?;
                found.extend(page.rows.into_iter().filter(&is_meant));
                let Some(next) = page.next else { break };
                scan.after = next;
            }
        }
        found.truncate(limit);
        Ok(found)
    }

    /// Adds the rows that an action would change to a set, up to `limit`, in the order in which
    /// [`Operator::change_rows`] takes them.
    pub(crate) async fn add_rows<T: Listed>(
        &self,
        acting: &Acting<'_>,
        limit: u64,
        set: &mut RowSet,
        done: &mut Done,
    ) -> Result<()> {
        for mut scan in T::scans(self, acting.of, true).await? {
            while set.count() < limit {
                let page = T::page(self, acting.of, &scan).await?;
                done.before += page.before;
                done.pending += page.pending;
                for row in page.rows.iter().filter(|row| row.can(acting)) {
                    let before = set.count();
                    if before == limit {
                        break;
                    }
                    if let Some(refusal) = row.refusal(acting) {
                        return Err(RelayError::Refused(refusal));
                    }
                    set.add(&row.name(acting), row.came_at());
                    let count = if row.is_busy(acting) { &mut done.busy } else { &mut done.done };
                    *count += set.count() - before;
                }
                let Some(next) = page.next else { break };
                scan.after = next;
            }
        }
        Ok(())
    }

    /// Acts on the rows that are selected, `limit` at most, and on none but those of a set if there
    /// is one. Rows that were changed stay so after an error; the same call goes on with the rest.
    pub(crate) async fn change_rows<T: Listed>(
        &mut self,
        acting: &Acting<'_>,
        limit: u64,
        only: Option<&RowSet>,
        done: &mut Done,
    ) -> Result<()> {
        let most = if T::in_batches(acting.verb) { self.pace.batch() } else { 1 };
        for mut scan in T::scans(self, acting.of, true).await? {
            while done.all() < limit {
                let page = T::page(self, acting.of, &scan).await?;
                done.before += page.before;
                done.pending += page.pending;
                let is_meant =
                    |row: &T| row.can(acting) && only.is_none_or(|only| only.has(&row.name(acting)));
                let rows: Vec<T> = page.rows.into_iter().filter(is_meant).collect();
                let mut rest = &rows[..];
                while !rest.is_empty() && done.all() < limit {
                    let room = usize::try_from(limit - done.all()).unwrap_or(usize::MAX);
                    let (some, others) = rest.split_at(rest.len().min(most).min(room));
                    let before = done.changed();
                    T::change(self, acting, some, done).await?;
                    self.pace.did(done.changed() - before).await;
                    rest = others;
                }
                let Some(next) = page.next else { break };
                scan.after = next;
            }
        }
        Ok(())
    }
}
