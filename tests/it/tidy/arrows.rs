//! Dependencies point one way: those of crates, and those of the rooms within a crate.
//!
//! ARCHITECTURE.md lists the arrows in blocks of text, `from -> to, to`, under a title: `crates:`,
//! or the folder of a crate, `relay/src:`. A room is a file or a folder below that one. Every room
//! may use the rooms that `all` may use.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use super::{files, repository};

/// Who uses whom, with a place where it does.
type Arrows = BTreeMap<(String, String), String>;

/// The blocks of ARCHITECTURE.md, by their titles.
fn listed() -> BTreeMap<String, BTreeSet<(String, String)>> {
    let text = fs::read_to_string(repository().join("ARCHITECTURE.md")).unwrap();
    let blocks = text.split("```text\n").skip(1).map(|block| block.split("```").next().unwrap());
    blocks
        .filter_map(|block| {
            let (title, lines) = block.split_once(":\n")?;
            let arrows = lines.lines().filter_map(|line| line.split_once(" -> ")).flat_map(|(from, rest)| {
                let to = rest.split("  ").next().unwrap_or_default();
                let to = to.split(", ").map(str::trim).filter(|to| !to.is_empty());
                to.map(|to| (from.trim().to_owned(), to.to_owned())).collect::<Vec<_>>()
            });
            Some((title.to_owned(), arrows.collect()))
        })
        .collect()
}

/// Fails unless exactly the listed arrows are there.
fn compare(title: &str, listed: &BTreeSet<(String, String)>, found: &Arrows) {
    let below: BTreeSet<&String> =
        listed.iter().filter(|(from, _)| from == "all").map(|(_, to)| to).collect();
    let is_listed = |arrow: &(String, String)| below.contains(&arrow.1) || listed.contains(arrow);
    let new: Vec<_> = found.iter().filter(|(arrow, _)| !is_listed(arrow)).collect();
    assert!(new.is_empty(), "{title} ARCHITECTURE.md does not list these arrows: {new:?}");
    let stale: Vec<_> =
        listed.iter().filter(|arrow| arrow.0 != "all" && !found.contains_key(*arrow)).collect();
    assert!(stale.is_empty(), "{title} ARCHITECTURE.md lists arrows that nobody needs: {stale:?}");
}

/// A way from a name back to itself, if there is one.
fn circle(arrows: &Arrows) -> Option<Vec<String>> {
    fn walk(arrows: &Arrows, way: &mut Vec<String>, done: &mut BTreeSet<String>) -> bool {
        let here = way.last().expect("a way begins somewhere").clone();
        for (_, next) in arrows.keys().filter(|(from, _)| *from == here) {
            if way.contains(next) {
                way.push(next.clone());
                return true;
            }
            if !done.contains(next) {
                way.push(next.clone());
                if walk(arrows, way, done) {
                    return true;
                }
                way.pop();
            }
        }
        done.insert(here);
        false
    }
    let mut done = BTreeSet::new();
    arrows.keys().find_map(|(from, _)| {
        let mut way = vec![from.clone()];
        walk(arrows, &mut way, &mut done).then_some(way)
    })
}

/// Code that is compiled into the product, without comments.
pub(super) fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let product = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = product.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The names that follow `crate::`, and `super::` where that leads to the crate, `depth` modules
/// up.
fn imports(code: &str, depth: usize) -> Vec<String> {
    let mut found = Vec::new();
    let from_crate = code.match_indices("crate::").map(|(at, word)| at + word.len());
    let up = "super::".repeat(depth);
    let from_super = code.match_indices(&up).map(|(at, word)| at + word.len());
    for start in from_crate.chain(from_super) {
        let rest = &code[start..];
        let Some(list) = rest.strip_prefix('{') else {
            found.push(rest.to_owned());
            continue;
        };
        let (mut nested, mut from) = (0, 0);
        for (at, character) in list.char_indices() {
            match character {
                '{' => nested += 1,
                '}' if nested > 0 => nested -= 1,
                ',' | '}' if nested == 0 => {
                    found.push(list[from..at].trim().to_owned());
                    from = at + 1;
                    if character == '}' {
                        break;
                    }
                }
                _ => {}
            }
        }
    }
    let name = |path: String| {
        path.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default().to_owned()
    };
    found.into_iter().map(name).filter(|name| !name.is_empty()).collect()
}

/// The names that `lib.rs` gives to the items of a room: `pub use room::{Name, part::Other};`.
fn reexports(library: &str) -> BTreeMap<String, String> {
    let uses = library.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next()?.split_once("::"));
    uses.flat_map(|(room, names)| {
        let names = names.split([',', '{', '}', ' ', '\n']).filter(|name| !name.is_empty());
        let last = |name: &str| name.rsplit("::").next().unwrap_or_default().to_owned();
        names.map(move |name| (last(name), room.to_owned())).collect::<Vec<_>>()
    })
    .collect()
}

/// The arrows between the rooms of a crate. `main.rs` and `bin` are programs that use the library
/// from outside.
fn rooms(source: &Path) -> Arrows {
    let name = |path: &Path| path.file_stem().unwrap().to_string_lossy().into_owned();
    let outside = ["lib", "main", "bin"];
    let entries = fs::read_dir(source).unwrap().map(|entry| name(&entry.unwrap().path()));
    let rooms: BTreeSet<String> = entries.filter(|room| !outside.contains(&room.as_str())).collect();
    let reexports = reexports(&code(&source.join("lib.rs")));
    let mut arrows = Arrows::new();
    for path in files("rs").into_iter().filter(|path| path.starts_with(source)) {
        let module = path.strip_prefix(source).unwrap().with_extension("");
        let from = name(Path::new(module.components().next().unwrap().as_os_str()));
        if !rooms.contains(&from) || path.ends_with("tests.rs") {
            continue;
        }
        for import in imports(&code(&path), module.components().count()) {
            let to = if rooms.contains(&import) { Some(&import) } else { reexports.get(&import) };
            if let Some(to) = to.filter(|to| **to != from && rooms.contains(*to)) {
                arrows.entry((from.clone(), to.clone())).or_insert_with(|| module.display().to_string());
            }
        }
    }
    arrows
}

/// The folders of the workspace's members that have a library.
pub(super) fn libraries() -> Vec<String> {
    let sources = files("rs").into_iter().filter(|path| path.ends_with("src/lib.rs"));
    let folder = |path: std::path::PathBuf| {
        let crate_folder = path.ancestors().nth(2).unwrap().to_owned();
        crate_folder.strip_prefix(repository()).unwrap().display().to_string()
    };
    sources.map(folder).collect()
}

#[test]
fn crates_depend_on_each_other_as_listed_and_in_no_circle() {
    let mut found = Arrows::new();
    let manifests = files("toml").into_iter().filter(|path| path.ends_with("Cargo.toml"));
    for path in manifests.filter(|path| path.ancestors().nth(2) == Some(&repository())) {
        let from = path.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
        for line in fs::read_to_string(&path).unwrap().lines() {
            if let Some(rest) = line.strip_prefix("oncebox-") {
                let to = rest.split(['.', ' ', '=']).next().unwrap().to_owned();
                found.insert((from.clone(), to), "Cargo.toml".to_owned());
            }
        }
    }
    assert!(found.len() >= 8, "{found:?}");
    compare("crates:", &listed()["crates"], &found);
    assert_eq!(circle(&found), None);
}

#[test]
fn rooms_use_each_other_as_listed() {
    let listed = listed();
    let titles: Vec<&String> = listed.keys().filter(|title| title.ends_with("/src")).collect();
    assert!(titles.iter().any(|title| *title == "relay/src"), "{titles:?}");
    for title in titles {
        compare(&format!("{title}:"), &listed[title], &rooms(&repository().join(title)));
    }
}

/// Files may lean on each other, as a type and its builder do; folders may not.
#[test]
fn no_folders_of_a_crate_use_each_other_in_a_circle() {
    let libraries = libraries();
    assert!(libraries.len() >= 4, "{libraries:?}");
    for library in
        libraries.iter().filter(|library| !["tests", "examples", "bench"].contains(&library.as_str()))
    {
        let source = repository().join(library).join("src");
        let mut arrows = rooms(&source);
        arrows.retain(|(from, to), _| source.join(from).is_dir() && source.join(to).is_dir());
        assert_eq!(circle(&arrows), None, "{library}: {arrows:?}");
    }
}

#[test]
fn imports_are_read_however_they_are_written() {
    let code =
        "use crate::{a::b, c::{d, e},\n f};\nuse super::super::g;\nlet x = crate::h::new();\nuse super::i;";
    assert_eq!(imports(code, 2), ["a", "c", "f", "h", "g"]);
}
