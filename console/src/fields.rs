//! The fields of addresses and forms.

use std::str::FromStr;

use oncebox_operator::{Kind, Selection};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::problem::Problem;

/// The fields of an address, or of a form; each name once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields(pub(crate) Vec<(String, String)>);

impl Fields {
    pub(crate) fn parse(text: &str) -> Self {
        let decoded = |part: &str| {
            let part = part.replace('+', " ");
            percent_decode_str(&part).decode_utf8_lossy().into_owned()
        };
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        });
        Self(pairs.collect())
    }

    /// A field that is given and not empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    }

    /// A field that is compared as it is, and may be empty.
    pub(crate) fn exact(&self, name: &str) -> Option<String> {
        self.0.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone())
    }

    pub(crate) fn is_exact(name: &str) -> bool {
        name.ends_with("-is")
    }

    /// The fields that say something.
    pub(crate) fn given(&self) -> impl Iterator<Item = &(String, String)> {
        self.0.iter().filter(|(name, value)| Self::is_exact(name) || !value.trim().is_empty())
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.get(name).map(str::to_owned)
    }

    /// A field of another type, if it is given.
    pub(crate) fn parsed<T: FromStr>(&self, name: &str) -> Result<Option<T>, Problem> {
        let text = self.get(name);
        let wrong = |text: &str| Problem::Bad(format!("{name}: {text:?} is none"));
        text.map(|text| text.parse().map_err(|_| wrong(text))).transpose()
    }

    /// The rows of a kind that are meant, as its options say; `is_page` has those after a place.
    pub(crate) fn selection(&self, kind: Kind, is_page: bool) -> Result<Selection, Problem> {
        let mut selection = Selection::of(kind);
        let is_meant = |name: &str| {
            kind.selectors().iter().any(|field| field.name == name) || (is_page && name == "after")
        };
        for (name, value) in self.given().filter(|(name, _)| is_meant(name)) {
            let value = if Self::is_exact(name) { value } else { value.trim() };
            selection.set(name, value).map_err(|problem| Problem::Bad(format!("{name}: {problem}")))?;
        }
        Ok(selection)
    }

    /// The address with these fields.
    pub(crate) fn link(path: &str, fields: &[(&str, &str)]) -> String {
        let given = fields.iter().filter(|(name, value)| Self::is_exact(name) || !value.is_empty());
        let pairs: Vec<String> = given.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        if pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", pairs.join("&")) }
    }
}

/// A text as part of an address.
pub(crate) fn encoded(text: &str) -> String {
    const RESERVED: AsciiSet = CONTROLS
        .add(b' ')
        .add(b'"')
        .add(b'#')
        .add(b'%')
        .add(b'&')
        .add(b'\'')
        .add(b'+')
        .add(b'/')
        .add(b'<')
        .add(b'=')
        .add(b'>')
        .add(b'?')
        .add(b'\\');
    utf8_percent_encode(text, &RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_go_there_and_back() {
        for text in ["a b", "a+b&c=d", "order:1%3A2#x?y/z\\", "é<\"'>", ".."] {
            let link = Fields::link("/key", &[("key", text), ("empty", "")]);
            let query = link.split_once('?').unwrap().1;
            assert_eq!(Fields::parse(query).get("key"), Some(text), "{link}");
            assert_eq!(Fields::parse(query).0.len(), 1);
        }
        let fields = Fields::parse("a=1&b=&c&a=2&n=x");
        assert_eq!((fields.get("a"), fields.get("b"), fields.get("c")), (Some("1"), None, None));
        assert!(fields.parsed::<i64>("n").is_err());
        assert_eq!(fields.parsed::<i64>("a"), Ok(Some(1)));
    }
}
