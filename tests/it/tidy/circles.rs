//! Files of a crate do not use each other in a circle. A module and those below it may: a facade
//! names the items of its parts, and they name its items.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use super::{
    arrows::{code, libraries},
    files, repository,
};

/// Names from the crate's root on; empty for `lib.rs`.
type Module = Vec<String>;
/// The modules of a crate, each with the paths that it writes: `crate::a::b`, `super::c`.
type Crate = BTreeMap<Module, Vec<Vec<String>>>;

fn read(source: &Path) -> Crate {
    let sources = files("rs").into_iter().filter(|path| path.starts_with(source));
    let modules = sources.filter_map(|path| {
        let module = path.strip_prefix(source).unwrap().with_extension("");
        let mut module: Module =
            module.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
        if module == ["lib"] {
            module.clear();
        }
        let is_outside = module.last().is_some_and(|name| name == "main" || name == "tests");
        (!is_outside && module.first().is_none_or(|name| name != "bin"))
            .then(|| (module, paths(&code(&path))))
    });
    modules.collect()
}

fn paths(code: &str) -> Vec<Vec<String>> {
    let (mut found, mut rest, mut end) = (Vec::new(), String::new(), 0);
    for (at, word) in code.match_indices("use ") {
        let before = code[..at].rsplit('\n').next().unwrap_or_default().trim();
        if at >= end && (before.is_empty() || before.starts_with("pub")) {
            let tree = code[at + word.len()..].split(';').next().unwrap_or_default();
            found.extend(leaves(tree));
            rest.push_str(&code[end..at]);
            end = at + word.len() + tree.len();
        }
    }
    rest.push_str(&code[end..]);
    for start in ["crate::", "super::"] {
        for (at, _) in rest.match_indices(start) {
            let end = |c: char| !c.is_alphanumeric() && c != '_' && c != ':';
            found.push(rest[at..].split(end).next().unwrap_or_default().to_owned());
        }
    }
    found.iter().map(|path| path.split("::").map(|name| name.trim().to_owned()).collect()).collect()
}

/// The paths of a tree of imports: `a::{b, c::{d, e}}` has three.
fn leaves(tree: &str) -> Vec<String> {
    let Some((front, list)) = tree.split_once('{') else {
        return vec![tree.split(" as ").next().unwrap_or_default().trim().to_owned()];
    };
    let list = list.rsplit_once('}').map_or(list, |(list, _)| list);
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for character in list.chars() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().expect("there is one").push(character);
    }
    let parts = parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty());
    parts.flat_map(leaves).map(|leaf| format!("{}{leaf}", front.trim())).collect()
}

/// The module whose file has the thing at a path; through the names that modules on the way give to
/// items of others. `None` for other crates.
fn owner(
    of: &Crate,
    from: &Module,
    path: &[String],
    seen: &mut BTreeSet<(Module, String)>,
) -> Option<Module> {
    let mut here = from.clone();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => {
            here.clear();
            rest = &rest[1..];
        }
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().is_some_and(|name| name == "super") {
                here.pop();
                rest = &rest[1..];
            }
        }
        name => {
            let child = [here.as_slice(), &[name.to_owned()]].concat();
            of.get(&child)?;
        }
    }
    while let Some(name) = rest.first() {
        let child = [here.as_slice(), std::slice::from_ref(name)].concat();
        if of.contains_key(&child) {
            here = child;
            rest = &rest[1..];
        } else {
            break;
        }
    }
    if let Some(name) = rest.first()
        && seen.insert((here.clone(), name.clone()))
    {
        let renamed = of.get(&here).into_iter().flatten().filter(|other| other.last() == Some(name));
        let through = renamed.filter_map(|other| owner(of, &here, other, seen)).next();
        return through.or(Some(here));
    }
    Some(here)
}

/// For each module those that it uses, but for the ones above and below it.
fn uses(modules: &Crate) -> BTreeMap<&Module, BTreeSet<Module>> {
    let used = |from: &Module| {
        let paths = modules[from].iter();
        let owners = paths.filter_map(|path| owner(modules, from, path, &mut BTreeSet::new()));
        owners.filter(|to| !to.starts_with(from) && !from.starts_with(to)).collect()
    };
    modules.keys().map(|module| (module, used(module))).collect()
}

/// The largest sets of modules each of which leads to all others.
fn circles(modules: &Crate) -> BTreeSet<Vec<String>> {
    let uses = uses(modules);
    let reached = |from: &Module| {
        let (mut reached, mut pending) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(module) = pending.pop() {
            for next in uses.get(&module).into_iter().flatten() {
                if reached.insert(next.clone()) {
                    pending.push(next.clone());
                }
            }
        }
        reached
    };
    let reach: BTreeMap<&Module, BTreeSet<Module>> =
        modules.keys().map(|module| (module, reached(module))).collect();
    let circle = |of: &Module| -> Vec<String> {
        let both = reach[of].iter().filter(|other| reach.get(other).is_some_and(|back| back.contains(of)));
        both.map(|module| module.join("/")).collect()
    };
    modules.keys().map(circle).filter(|circle| circle.len() > 1).collect()
}

#[test]
fn no_files_of_a_crate_use_each_other_in_a_circle() {
    let mut found = BTreeSet::new();
    let mut checked = 0;
    for library in libraries() {
        let modules = read(&repository().join(&library).join("src"));
        checked += modules.len();
        found.extend(circles(&modules).into_iter().map(|circle| (library.clone(), circle)));
    }
    assert!(checked > 250, "{checked}");
    assert!(found.is_empty(), "move the type that both sides need to a file below them: {found:?}");
}

#[test]
fn a_circle_is_found_however_it_is_closed() {
    let made = |files: &[(&str, &str)]| -> Crate {
        let module =
            |name: &str| name.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        files.iter().map(|(name, code)| (module(name), paths(code))).collect()
    };
    let check = |files: &[(&str, &str)], expected: &[&str]| {
        let found: Vec<Vec<String>> = circles(&made(files)).into_iter().collect();
        let expected: Vec<Vec<&str>> = if expected.is_empty() { vec![] } else { vec![expected.to_vec()] };
        assert_eq!(found, expected, "{files:?}");
    };
    check(&[("a", "use crate::b::B;"), ("b", "fn f() -> crate::a::A {}")], &["a", "b"]);
    check(&[("a", "use crate::b::B;"), ("b", "use std::a;")], &[]);
    // Through a name that the root gives, and in a list.
    check(&[("", "pub use b::{B, C};"), ("a", "use crate::{C, x};"), ("b", "use super::a::A;")], &["a", "b"]);
    // A module and its part.
    check(&[("a", "use part::P;"), ("a/part", "use super::A;")], &[]);
    check(
        &[("a/b", "use super::c::C;"), ("a/c", "use super::{d::D};"), ("a/d", "use super::b::B;")],
        &["a/b", "a/c", "a/d"],
    );
}
