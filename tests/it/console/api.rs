//! The description of the API is true: every answer of a real console fits the schema of its
//! operation, and has no field beside it.

use std::collections::BTreeSet;

use jsonschema::Draft;
use oncebox_tests::{TestEnv, eventually};
use serde_json::{Value, json};

use super::{
    hostile::{KEY, PAGES, fill},
    support::{Answer, Console},
};
use crate::{operator::hostile::outbox, relay::support::LIMIT};

const KEYS: [&str; 5] = ["m-0", "m-3", "parked-0", "2:order", KEY.1];

/// The description of a console, in which no object may have other fields than those described.
struct Described(Value);

impl Described {
    async fn of(console: &Console) -> Self {
        let mut document = serde_json::from_str(&console.get("/api/v1/openapi.json").await.body).unwrap();
        close(&mut document);
        Self(document)
    }

    /// Checks an answer of the operation with this id.
    fn check(&self, id: &str, answer: &Answer) {
        let (path, method) = self.operation(id);
        let responses = format!("/paths/{}/{method}/responses", path.replace('/', "~1"));
        let schema = match answer.status {
            200 => format!("{responses}/200/content/application~1json/schema"),
            _ => "/components/schemas/Problem".to_owned(),
        };
        let body = serde_json::from_str(&answer.body);
        let body: Value = body.unwrap_or_else(|error| panic!("{id}: {error}: {}", answer.body));
        // The document is the root, so that the references of its schemas are found.
        let mut whole = self.0.clone();
        whole["$ref"] = Value::from(format!("#{}", schema.replace('{', "%7B").replace('}', "%7D")));
        let options = jsonschema::options().with_draft(Draft::Draft202012).should_validate_formats(true);
        let schema = options.offline().build(&whole).unwrap();
        if let Err(error) = schema.validate(&body) {
            panic!("{id}: {error}, at {}: {body}", error.instance_path());
        }
    }

    /// Path and method of an operation.
    fn operation(&self, id: &str) -> (&str, &str) {
        let paths = self.0["paths"].as_object().unwrap().iter();
        let mut all = paths.flat_map(|(path, methods)| {
            methods.as_object().unwrap().iter().map(move |(method, operation)| (path, method, operation))
        });
        let found = all.find(|(_, _, operation)| operation["operationId"] == id);
        let (path, method, _) = found.unwrap_or_else(|| panic!("no operation has the id {id}"));
        (path, method)
    }

    /// The id of the operation that a GET of this path is.
    fn id(&self, path: &str) -> &str {
        let given: Vec<&str> = path.split('?').next().unwrap().split('/').collect();
        let paths = self.0["paths"].as_object().unwrap().iter();
        let mut found = paths.filter(|(described, _)| {
            let parts: Vec<&str> = described.split('/').collect();
            let fits = |(part, given): (&&str, &&str)| part.starts_with('{') || part == given;
            parts.len() == given.len() && parts.iter().zip(&given).all(fits)
        });
        let (_, methods) = found.next().unwrap_or_else(|| panic!("{path} is not described"));
        methods["get"]["operationId"].as_str().unwrap_or_else(|| panic!("{path} has no id"))
    }

    fn ids(&self) -> BTreeSet<&str> {
        let methods = self.0["paths"].as_object().unwrap().values();
        let operations = methods.flat_map(|methods| methods.as_object().unwrap().values());
        operations.map(|operation| operation["operationId"].as_str().unwrap()).collect()
    }
}

/// Lets no object have a field that is not described.
fn close(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.values_mut().for_each(close);
            if object.get("type") == Some(&json!("object")) && object.contains_key("properties") {
                object.entry("additionalProperties").or_insert(Value::Bool(false));
            }
        }
        Value::Array(all) => all.iter_mut().for_each(close),
        _ => {}
    }
}

#[tokio::test]
async fn every_answer_of_the_api_fits_its_description() {
    let env = TestEnv::new().await;
    fill(&outbox(&env).await).await;
    let console = Console::of(&env, &["--show-payloads", "--allow-actions"]).await;
    eventually("the doctor has looked", LIMIT, async || {
        let shown = console.api("/databases/shop").await;
        (!shown["examination"].is_null() && !shown["status"]["nats"].is_null()).then_some(())
    })
    .await;
    let described = Described::of(&console).await;
    let document = json!({ "kind": "delayed", "action": "cancel", "key": "later", "note": "INC-7" });
    let typed = [("content-type", "application/json")];
    let path = "/api/v1/databases/shop/act";
    let begun = console.ask("POST", path, &typed, &document.to_string()).await;
    described.check("beginAction", &begun);
    let mut answered = BTreeSet::from(["beginAction"]);
    let pages = PAGES.iter().map(|path| match path.strip_prefix("/db/") {
        Some(rest) => format!("/databases/{rest}"),
        None => (*path).to_owned(),
    });
    let of_keys = KEYS.iter().flat_map(|key| {
        ["/key?key=", "/find?q=", "/databases/shop/message?key=", "/databases/shop/saga?key="]
            .map(|path| format!("{path}{key}"))
    });
    let others = ["/jobs/1", "/jobs/77", "/databases/none", "/databases/shop/act?kind=dead"];
    for path in pages.chain(of_keys).chain(others.map(str::to_owned)) {
        let path = format!("/api/v1{}", if path == "/" { "/databases" } else { &path });
        let answer = console.get(&path).await;
        let id = described.id(&path);
        described.check(id, &answer);
        answered.extend((answer.status == 200).then_some(id));
    }
    assert_eq!(answered, described.ids(), "operations with an answer that is no error");
}

#[tokio::test]
async fn every_refusal_of_the_api_is_the_problem_that_it_describes() {
    let env = TestEnv::new().await;
    let console = Console::of(&env, &["--token-file", "{tokens}"]).await;
    let open = Console::of(&env, &[]).await;
    let described = Described::of(&open).await;
    for (of, method, headers, status) in [
        (&console, "GET", &[][..], 401),
        (&open, "GET", &[("host", "elsewhere.example")], 421),
        (&open, "GET", &[("sec-fetch-site", "cross-site")], 403),
        (&open, "DELETE", &[], 405),
        (&open, "POST", &[("content-type", "text/plain")], 400),
    ] {
        let answer = of.ask(method, "/api/v1/databases/shop/act", headers, "").await;
        assert_eq!(answer.status, status, "{}", answer.body);
        assert_eq!(answer.header("content-type"), Some("application/json"), "{status}");
        described.check("beginAction", &answer);
    }
}
