use super::*;

/// A saga with everything that a file can say.
pub(super) const ORDER: &str = include_str!("order.toml");

fn mistakes(change: impl Fn(String) -> String) -> Vec<String> {
    let text = change(ORDER.to_owned());
    assert_ne!(text, ORDER, "the text is not in the file");
    let found = SagaFile::parse(&text).expect_err("a wrong file");
    found.into_iter().map(|mistake| mistake.to_string()).collect()
}

#[test]
fn a_file_has_the_graph_of_a_definition() {
    let file = SagaFile::parse(ORDER).unwrap();
    let steps: Vec<&str> = file.graph().steps().collect();
    assert_eq!(steps, ["reserve", "pay", "notify", "ship"]);
    let drawn = file.graph().mermaid();
    for arrow in ["start --> s0", "start --> s1", "s0 --> s3", "s1 --> s2", "s2 --> s3", "s3{{\"ship"] {
        assert!(drawn.contains(arrow), "{arrow} in\n{drawn}");
    }
}

#[test]
fn blanks_and_comments_do_not_make_another_version_and_all_else_does() {
    let of = |text: &str| SagaFile::parse(text).unwrap().graph().fingerprint().to_owned();
    assert_eq!(of(ORDER), of(&format!("# a comment\n\n{}", ORDER.replace("version = 1", "version   =  1"))));
    for (old, new) in
        [("\"60s\"", "\"61s\""), ("\"eur\"", "\"usd\""), ("\"stock-service:reserve\"", "\"other\"")]
    {
        assert_ne!(of(ORDER), of(&ORDER.replace(old, new)), "{new}");
    }
}

#[test]
fn each_of_many_mistakes_is_told_with_its_line() {
    let wrong = "name = \"Order\"\nversion = 0\nowner = \"me\"\n[[step]]\nname = \"pay\"\nattempts = \"3\"\n";
    let found = SagaFile::parse(wrong).unwrap_err();
    let lines: Vec<usize> = found.iter().map(|mistake| mistake.line).collect();
    let text = found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    for part in
        ["line 2: ", "line 3: ", "\"owner\"", "line 6: ", "needs subject", "needs scope", "needs a payload"]
    {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert!(lines.is_sorted());
}

/// `[step]` in place of `[[step]]`, as often as there are steps.
#[test]
fn a_table_that_is_written_again_is_one_mistake() {
    let found = mistakes(|text| text.replace("[[step]]", "[step]"));
    let said = "there are several tables [step]: write each as [[step]], with two brackets";
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].ends_with(said), "{found:?}");
    let found = mistakes(|text| text.replacen("version = 1", "version = 1\nversion = 2", 1));
    assert!(found.len() == 1 && found[0].contains("duplicate key"), "{found:?}");
}

/// A later step of an operator's skip is known to need the reply.
#[test]
fn the_graph_says_which_replies_a_step_needs() {
    let graph: serde_json::Value =
        serde_json::from_str(&SagaFile::parse(ORDER).unwrap().graph().json()).unwrap();
    let needs: Vec<_> = graph.as_array().unwrap().iter().filter_map(|step| step.get("needs")).collect();
    assert_eq!(needs, [&json!([{"step": "reserve", "field": "/id", "path": ["id"]}])]);
    let ship = graph.as_array().unwrap().iter().find(|step| step["name"] == "ship").unwrap();
    assert!(ship.get("needs").is_some(), "a compensation with a default needs nothing");
}

#[test]
fn a_payload_finds_its_values_when_they_are_needed() {
    let check = |old: &str, new: &str, said: &str| {
        let found = mistakes(|text| text.replacen(old, new, 1));
        assert!(found.iter().any(|mistake| mistake.contains(said)), "{new}: {found:?}");
    };
    check(
        "{ from = \"/data/order\" }",
        "{ from = \"/data/ordre\" }",
        "/data/ordre: in data, /ordre is not declared",
    );
    check(
        "{ from = \"/data/note\", default = \"\" }",
        "{ from = \"/data/note\" }",
        "in data, /note may be missing (required = false): give a default, such as default = \"\"; if it is always there, \
         declare \"/note\" = \"string\"",
    );
    check(
        "{ from = \"/data/order\" }",
        "{ from = \"/data/ordre\" }",
        "declare it, \"/ordre\" = \"string\" or another type; if it may be missing, \"/ordre\" = { type = \"string\", \
         required = false }, and give a default",
    );
    check("{ from = \"/data/order\" }", "{ from = \"/data/order/x\" }", "which has no fields");
    check("{ from = \"/data/order\" }", "{ from = \"data/order\" }", "is no JSON Pointer");
    check("{ from = \"/data/order\" }", "{ from = \"/replies/pay/id\" }", "does not come before");
    check("{ from = \"/data/order\" }", "{ from = \"/replies/paid/id\" }", "there is no step \"paid\"");
    check("{ from = \"/data/order\" }", "{ from = \"/answers/pay\" }", "no place of a saga");
    check("\"/replies/reserve/id\", default = \"\" }", "\"/replies/reserve/id\" }", "its reply never came");
    check("\"/order\" = \"integer\"", "\"/order\" = \"int\"", "\"int\" is not a type");
    check("payload = { from = \"/data\" }", "payload = 1979-05-27", "JSON has no dates");
}

#[test]
fn numbers_keep_their_digits_and_defaults_stand_for_null() {
    let template = Template::Object(vec![
        ("cents".to_owned(), Template::From(source("/data/cents", None))),
        ("note".to_owned(), Template::From(source("/data/note", Some(json!("none"))))),
        ("second".to_owned(), Template::From(source("/replies/pay/ids/1", None))),
    ]);
    let data = r#"{"cents": 12345678901234567890.120, "note": null}"#;
    let document = Document {
        data: RawValue::from_string(data.to_owned()).unwrap(),
        replies: [("pay".to_owned(), RawValue::from_string(r#"{"ids":["a","b"]}"#.to_owned()).unwrap())]
            .into(),
        refusals: [].into(),
    };
    let payload = template.render(&document).unwrap();
    assert_eq!(payload, r#"{"cents":12345678901234567890.120,"note":"none","second":"b"}"#);
}

fn source(pointer: &str, default: Option<serde_json::Value>) -> Source {
    Source { pointer: template::Pointer::parse(pointer).unwrap(), default, line: 1 }
}

#[test]
fn scenarios_take_every_way() {
    let saga = SagaFile::parse(ORDER).unwrap();
    let scenarios = Scenarios::parse(include_str!("order.scenarios.toml"), &saga).unwrap();
    for outcome in scenarios.run(&saga) {
        assert_eq!(outcome.problem, None, "{}:\n{}", outcome.name, outcome.path.join("\n"));
    }
}

#[test]
fn a_scenario_that_ends_otherwise_says_so() {
    let saga = SagaFile::parse(ORDER).unwrap();
    let text =
        "[[scenario]]\nname = \"x\"\ndata = { order = 1, cents = 2 }\nends = \"completed\"\nsends = []\n";
    let outcomes = Scenarios::parse(text, &saga).unwrap().run(&saga);
    assert_eq!(outcomes[0].problem.as_deref(), Some("it is running, not completed"));
    let wrong =
        text.replace("order = 1", "order = \"1\"") + "answers = [{ step = \"fly\", answer = \"perhaps\" }]";
    let found = Scenarios::parse(&wrong, &saga).unwrap_err();
    let found = found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    for part in ["field /order is not of type integer", "no step \"fly\"", "answer is done"] {
        assert!(found.contains(part), "{part} in\n{found}");
    }
}

#[test]
fn the_schema_for_editors_names_the_fields_that_are_read() {
    let schema: serde_json::Value = serde_json::from_str(SagaFile::SCHEMA).unwrap();
    let names = |of: &serde_json::Value| {
        let mut names: Vec<String> = of.as_object().unwrap().keys().cloned().collect();
        names.sort();
        names
    };
    let sorted = |names: &[&str]| {
        let mut names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&schema["$defs"]["step"]["properties"]), sorted(&step::KNOWN));
    assert_eq!(names(&schema["properties"]), sorted(&KNOWN));
}
