//! Answers of many sagas in one transaction.

use std::collections::BTreeMap;

use oncebox_schema::Transaction;

use super::engine::{Advanced, Engine, Incoming, command_of, contradiction};
use crate::{
    Error,
    error::failed,
    instance::{Instance, Waiting},
    progress::{Event, Verdict},
    store::Found,
};

impl Engine {
    /// Deals with answers of many sagas at once, each as [`Engine::receive`] would, with a few
    /// statements for all of them. Returns `false`, when the transaction has to be rolled back, for
    /// answers of which one is not ordinary: it comes too early or again, or changes nothing any
    /// more because its saga is set aside.
    pub(super) async fn receive_all(
        &self,
        transaction: &Transaction,
        answers: &[Incoming<'_>],
    ) -> Result<bool, Error> {
        if answers.iter().any(|answer| answer.is_again) {
            return Ok(false);
        }
        let mut of_saga: BTreeMap<&str, Vec<&Incoming<'_>>> = BTreeMap::new();
        for answer in answers {
            of_saga.entry(answer.address.saga.as_str()).or_default().push(answer);
        }
        let keys: Vec<&str> = of_saga.keys().copied().collect();
        let found = self.store.lock_all(transaction, &keys, &self.opening).await;
        let found = found.map_err(failed("lock sagas"))?;
        if found.len() < keys.len() {
            return Ok(false);
        }
        let (mut advanced, mut verdicts) = (Vec::new(), Vec::new());
        for (key, found) in found {
            let answers = of_saga.remove(key.as_str()).unwrap_or_default();
            match found {
                Found::OfAnother => verdicts.extend(answers.iter().map(|_| Verdict::Foreign)),
                Found::Finished => verdicts.extend(answers.iter().map(|_| Verdict::Late)),
                Found::Open(instance, waiting) => {
                    let Some(one) = self.apply_all(*instance, &waiting, &answers, &mut verdicts) else {
                        return Ok(false);
                    };
                    advanced.extend(one);
                }
                Found::Unknown | Found::Quarantined | Found::Unreadable(..) => return Ok(false),
            }
        }
        self.write(transaction, &advanced).await?;
        verdicts.into_iter().for_each(|verdict| self.counters.count(verdict));
        Ok(true)
    }

    /// Applies answers to a saga; the saga, if they change it. `None` when one is not ordinary.
    fn apply_all(
        &self,
        mut instance: Instance,
        waiting: &[Waiting],
        answers: &[&Incoming<'_>],
        verdicts: &mut Vec<Verdict>,
    ) -> Option<Option<Advanced>> {
        let mut is_changed = false;
        for incoming in answers {
            let Incoming { address, answer, payload, .. } = incoming;
            let command = command_of(instance.process.graph(), address)?;
            if contradiction(instance.process.graph(), command, incoming).is_some() {
                return None;
            }
            let verdict = instance.apply(&Event::Answered(command, answer.clone()), payload).ok()?;
            if verdict == Verdict::Early {
                return None;
            }
            is_changed |= verdict == Verdict::Applied;
            verdicts.push(verdict);
        }
        if !is_changed {
            return Some(None);
        }
        self.advanced(instance, waiting).ok().map(Some)
    }
}
