//! docs/sql.md: the functions of producers and consumers, written from the catalog.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
};

use oncebox_tests::TestEnv;

const BEGIN: &str = "<!-- begin: written by `make schema` -->\n";
const END: &str = "<!-- end -->";
/// The functions that a role may call, and whose they are.
const FUNCTIONS: &str = "
    SELECT
      p.proname::text,
      pg_get_function_arguments(p.oid),
      coalesce(pg_get_function_result(p.oid), 'nothing'),
      coalesce(obj_description(p.oid, 'pg_proc'), ''),
      pg_get_functiondef(p.oid),
      ARRAY(
        SELECT substring(a.grantee::regrole::text FROM '(producer|consumer)\"?$') AS role
        FROM aclexplode(p.proacl) AS a
        WHERE a.grantee <> 0 AND a.grantee::regrole::text ~ '(producer|consumer)\"?$'
        ORDER BY role DESC)
    FROM pg_proc AS p
    WHERE p.pronamespace = 'oncebox'::regnamespace AND p.prokind = 'f'
    ORDER BY p.proname, p.oid";

struct Function {
    name: String,
    arguments: String,
    result: String,
    comment: String,
    roles: Vec<String>,
    /// Its own, and those of the functions that it calls.
    errors: BTreeSet<String>,
}

async fn functions() -> Vec<Function> {
    let env = TestEnv::new().await;
    let rows = env.pg().await.query(FUNCTIONS, &[]).await.unwrap();
    let bodies: BTreeMap<String, String> = rows.iter().map(|row| (row.get(0), row.get(4))).collect();
    let functions = rows.iter().map(|row| {
        let name: String = row.get(0);
        let mut errors = BTreeSet::new();
        collect_errors(&name, &bodies, &mut BTreeSet::new(), &mut errors);
        Function {
            name,
            arguments: row.get(1),
            result: row.get(2),
            comment: row.get(3),
            roles: row.get(5),
            errors,
        }
    });
    functions.collect()
}

fn collect_errors<'a>(
    name: &'a str,
    bodies: &'a BTreeMap<String, String>,
    seen: &mut BTreeSet<&'a str>,
    errors: &mut BTreeSet<String>,
) {
    let Some(body) = bodies.get(name).filter(|_| seen.insert(name)) else { return };
    errors.extend(body.split('\'').filter(|text| is_sqlstate(text)).map(ToOwned::to_owned));
    for other in bodies.keys().filter(|other| body.contains(&format!(".{other}("))) {
        collect_errors(other, bodies, seen, errors);
    }
}

fn is_sqlstate(text: &str) -> bool {
    text.len() == 5 && (text.starts_with("OB0") || text == "40001")
}

/// The part of the page between the marks.
fn rendered(functions: &[Function]) -> String {
    let mut text = String::new();
    for (role, title) in [("producer", "Producers"), ("consumer", "Consumers")] {
        writeln!(text, "\n## {title}\n\nFor the role `oncebox_..._{role}`.").unwrap();
        for function in
            functions.iter().filter(|function| function.roles.first().is_some_and(|first| first == role))
        {
            write_function(&mut text, function);
        }
    }
    text
}

fn write_function(text: &mut String, function: &Function) {
    let Function { name, arguments, result, comment, roles, errors } = function;
    let arguments = arguments.replace(", ", ",\n  ");
    writeln!(text, "\n### {name}\n\n```text\n{name}(\n  {arguments})\nRETURNS {result}\n```\n").unwrap();
    assert!(!comment.is_empty(), "function {name} has no COMMENT");
    for line in wrapped(comment) {
        writeln!(text, "{line}").unwrap();
    }
    if roles.len() > 1 {
        writeln!(text, "\nConsumers may call it too.").unwrap();
    }
    if !errors.is_empty() {
        let errors: Vec<String> = errors.iter().map(|code| format!("`{code}`")).collect();
        writeln!(text, "\nErrors: {}.", errors.join(", ")).unwrap();
    }
}

/// Lines of at most a hundred columns.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        if lines.last().is_some_and(|line| line.len() + word.len() >= 100) {
            lines.push(String::new());
        }
        let line = lines.last_mut().unwrap();
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines
}

#[tokio::test]
async fn the_page_lists_each_function_with_its_types_defaults_and_errors() {
    let functions = functions().await;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/sql.md");
    let text = fs::read_to_string(&path).unwrap();
    let (front, rest) = text.split_once(BEGIN).expect("the first mark");
    let (_, back) = rest.split_once(END).expect("the second mark");
    let wanted = format!("{front}{BEGIN}{}\n{END}{back}", rendered(&functions));
    if std::env::var_os("ONCEBOX_TEST_WRITE_SCHEMA").is_some() {
        fs::write(&path, &wanted).unwrap();
    } else {
        assert!(text == wanted, "docs/sql.md is not what the migrations make: run `make schema`");
    }
    // Each SQLSTATE that a function raises stands in the table, and no other one of ours.
    let raised: BTreeSet<&str> =
        functions.iter().flat_map(|function| &function.errors).map(String::as_str).collect();
    let listed: BTreeSet<&str> = front
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .filter(|code| is_sqlstate(code))
        .collect();
    assert_eq!(raised, listed);
}
