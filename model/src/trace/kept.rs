//! Rejected recordings, made small enough to be kept as tests: the steps of one key, or of one
//! saga, that break the rule by themselves.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    path::Path,
};

use serde_json::Value;

use super::{Keys, Rule, Steps, Verdict, check_consumers};

/// The group that lines belong to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    /// Every recording has them.
    All,
    Key(i64),
    Saga(i64),
    /// A message without a key, of one life.
    Message(String, u64),
    /// Counted by the user, of a key that no consumer has ended.
    Named(String),
}

/// The lines of a ledger, then those of recordings.
type Lines = Vec<(Group, Value)>;

/// The verdict over a kept file, without any expectation: lines of the ledger, and of recordings.
///
/// # Errors
/// A line is none of these.
pub fn check_kept(text: &str) -> Result<Verdict, serde_json::Error> {
    let (recorded, ledger): (Vec<&str>, Vec<&str>) =
        text.lines().filter(|line| !line.is_empty()).partition(|line| line.contains("\"run\":"));
    let mut steps = Steps::default();
    steps.add(&recorded.join("\n"));
    let mut verdict = check_consumers(&Keys::parse(ledger)?, &steps, &[]);
    verdict.broken.remove(&Rule::Vacuous);
    Ok(verdict)
}

/// For each rule that these recordings break, if the lines of one key or saga break it alone: the
/// rule, and these lines, numbered anew.
///
/// # Errors
/// A line of the ledger is none.
pub fn minimised(
    ledger: &[&str],
    recordings: &[String],
) -> Result<BTreeMap<Rule, String>, serde_json::Error> {
    let ledger = ledger.iter().map(|line| serde_json::from_str(line)).collect::<Result<Vec<Value>, _>>()?;
    let lines = recordings.iter().flat_map(|text| text.lines());
    let recorded = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok()).collect();
    let mut groups: BTreeMap<Group, Vec<Value>> = BTreeMap::new();
    for (group, line) in grouped(ledger, recorded) {
        groups.entry(group).or_default().push(line);
    }
    let all = groups.remove(&Group::All).unwrap_or_default();
    let mut found: BTreeMap<Rule, String> = BTreeMap::new();
    for own in groups.into_values() {
        let text = written(&all, own);
        for rule in check_kept(&text)?.broken.into_keys() {
            let kept = found.entry(rule).or_insert_with(|| text.clone());
            if text.len() < kept.len() {
                kept.clone_from(&text);
            }
        }
    }
    Ok(found)
}

/// Writes each rule's [`minimised`] recording into a folder: `RULE.jsonl`.
///
/// # Errors
/// A line of the ledger is none, or the folder takes nothing.
pub fn keep(ledger: &[&str], recordings: &[String], folder: &Path) -> io::Result<()> {
    for (rule, text) in minimised(ledger, recordings)? {
        fs::write(folder.join(format!("{rule:?}.jsonl").to_lowercase()), text)?;
    }
    Ok(())
}

/// The lines, each with its group.
fn grouped(ledger: Vec<Value>, recorded: Vec<Value>) -> Lines {
    let text = |line: &Value, field: &str| line[field].as_str().unwrap_or_default().to_owned();
    let name = |line: &Value| (text(line, "scope"), text(line, "name"));
    let is_key = |line: &&Value| line["of"] == "key";
    let keys: HashMap<(String, String), i64> =
        ledger.iter().filter(is_key).filter_map(|line| Some((name(line), line["key"].as_i64()?))).collect();
    let message = |line: &Value| Some((text(line, "run"), line["message"].as_u64()?));
    let messages: HashMap<(String, u64), i64> =
        recorded.iter().filter_map(|line| Some((message(line)?, line["key"].as_i64()?))).collect();
    let of_ledger = |line: &Value| match line["saga"].as_i64() {
        Some(saga) => Group::Saga(saga),
        None => {
            keys.get(&name(line)).map_or_else(|| Group::Named(text(line, "name")), |key| Group::Key(*key))
        }
    };
    let of_recording = |line: &Value| {
        if let Some(saga) = line["saga"].as_i64() {
            return Group::Saga(saga);
        }
        let key = line["key"].as_i64().or_else(|| messages.get(&message(line)?).copied());
        match (key, message(line)) {
            (Some(key), _) => Group::Key(key),
            (None, Some((run, sequence))) => Group::Message(run, sequence),
            (None, None) => Group::All,
        }
    };
    let ledger: Lines = ledger.into_iter().map(|line| (of_ledger(&line), line)).collect();
    ledger.into_iter().chain(recorded.into_iter().map(|line| (of_recording(&line), line))).collect()
}

/// The lines of a group, and the first ones of the lives that occur in it.
fn written(all: &[Value], own: Vec<Value>) -> String {
    let is_of_life = |first: &&Value| own.iter().any(|line| line["run"] == first["run"]);
    let firsts: Vec<Value> = all.iter().filter(is_of_life).cloned().collect();
    let (recorded, ledger): (Vec<Value>, Vec<Value>) =
        own.into_iter().partition(|line| line["run"].is_string());
    let mut last: HashMap<String, u64> = HashMap::new();
    let mut text = String::new();
    for mut line in ledger.into_iter().chain(firsts).chain(recorded) {
        if let Some(run) = line["run"].as_str() {
            let number = last.entry(run.to_owned()).or_default();
            *number += 1;
            line["line"] = (*number).into();
        }
        text += &format!("{line}\n");
    }
    text
}
