//! One schema: JSON Schema 2020-12, with the files beside it that it refers to.

use std::{
    collections::HashSet,
    io::Read as _,
    path::{Component, Path, PathBuf},
};

use jsonschema::{Draft, PatternOptions, Retrieve, Uri, ValidationOptions, Validator};
use oncebox_schema::error_chain;
use percent_encoding::percent_decode_str;
use serde_json::Value;

use crate::breach::Breach;

/// Where the folder of the file stands, for references.
const FOLDER: &str = "oncebox:///";
const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";
/// Bytes of the file, and of each that a schema refers to, at most.
pub(crate) const BYTES_MAX: u64 = 4 * 1024 * 1024;

/// A schema, ready to check payloads.
#[derive(Debug)]
pub(crate) struct Schema {
    validator: Validator,
    /// All names in it, which a reason may show.
    pub(crate) names: HashSet<String>,
    /// Itself, with each reference replaced by its target, unless that is within itself.
    pub(crate) whole: Value,
}

/// Files beside the contracts; nothing else, and no network.
struct Beside(PathBuf);

impl Schema {
    /// # Errors
    /// The place in the schema, as a JSON Pointer, and the problem.
    pub(crate) fn new(schema: &Value, folder: &Path) -> Result<Self, (String, String)> {
        let at_root = |problem: String| (String::new(), problem);
        if !schema.is_object() && !schema.is_boolean() {
            return Err(at_root("is not a JSON Schema: neither an object nor true or false".to_owned()));
        }
        let options = options(folder);
        let bundle = options.bundle(schema).map_err(|error| at_root(error_chain(&error)))?;
        other_draft(&bundle).map_or(Ok(()), |draft| {
            Err(at_root(format!("is written in {draft:?}; use {DRAFT:?}, or leave $schema out")))
        })?;
        let invalid = |error: jsonschema::ValidationError<'_>| {
            (error.instance_path().as_str().to_owned(), error_chain(&error))
        };
        jsonschema::draft202012::meta::validate(&bundle).map_err(invalid)?;
        let validator = options.build(schema).map_err(invalid)?;
        let whole = options.dereference(schema).map_err(|error| at_root(error_chain(&error)))?;
        let mut names = HashSet::new();
        collect_names(&bundle, &mut names);
        Ok(Self { validator, names, whole })
    }

    pub(crate) fn fits(&self, value: &Value) -> bool {
        self.validator.is_valid(value)
    }

    pub(crate) fn check(&self, value: &Value) -> Result<(), Breach> {
        // Whether it is valid is found faster than why not.
        if self.fits(value) {
            return Ok(());
        }
        match self.validator.validate(value) {
            Ok(()) => Ok(()),
            Err(error) => Err(Breach::new(&error, &self.names)),
        }
    }
}

/// `format` is an annotation, as the standard has it, and a pattern takes linear time.
fn options(folder: &Path) -> ValidationOptions<'static> {
    jsonschema::options()
        .with_draft(Draft::Draft202012)
        .should_validate_formats(false)
        .with_pattern_options(PatternOptions::regex())
        .with_base_uri(format!("{FOLDER}.schema"))
        .with_retriever(Beside(folder.to_owned()))
}

impl Retrieve for Beside {
    fn retrieve(&self, uri: &Uri<String>) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        let path = uri.as_str().strip_prefix(FOLDER).and_then(|rest| rest.split(['#', '?']).next());
        let Some(path) = path else {
            return Err("a schema refers only to files in the folder of its contracts, or below".into());
        };
        let path = PathBuf::from(percent_decode_str(path).decode_utf8()?.as_ref());
        if !path.components().all(|part| matches!(part, Component::Normal(_))) {
            return Err("the file lies outside of the folder of the contracts".into());
        }
        let text = read(&self.0.join(path))?;
        Ok(serde_json::from_str(&text)?)
    }
}

/// Reads a file, unless it is too large.
pub(crate) fn read(path: &Path) -> Result<String, String> {
    let problem = |problem: &dyn std::fmt::Display| format!("read {}: {problem}", path.display());
    let file = std::fs::File::open(path).map_err(|error| problem(&error))?;
    let mut text = String::new();
    let read = file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| problem(&error))?;
    match read as u64 > BYTES_MAX {
        true => Err(problem(&format_args!("it has more than {BYTES_MAX} bytes"))),
        false => Ok(text),
    }
}

/// Another draft that some part of a schema names.
fn other_draft(schema: &Value) -> Option<String> {
    match schema {
        Value::Object(object) => {
            let named = object.get("$schema").and_then(Value::as_str);
            let named = named.filter(|draft| draft.trim_end_matches('#') != DRAFT);
            named.map(str::to_owned).or_else(|| object.values().find_map(other_draft))
        }
        Value::Array(all) => all.iter().find_map(other_draft),
        _ => None,
    }
}

fn collect_names(schema: &Value, names: &mut HashSet<String>) {
    match schema {
        Value::Object(object) => {
            names.extend(object.keys().cloned());
            object.values().for_each(|value| collect_names(value, names));
        }
        Value::Array(all) => all.iter().for_each(|value| collect_names(value, names)),
        _ => {}
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn schema(rules: &Value) -> Schema {
        Schema::new(rules, Path::new("/nonexistent")).unwrap()
    }
}
