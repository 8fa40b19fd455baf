//! The description of the API, in the form of OpenAPI: routes give the words, and the types that
//! are serialised give the schemas.

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::order::REPLY;
use oncebox_operator::{Action, CHOSEN_MAX, NOTE_BYTES_MAX, is_chosen};

/// The body of an answer that is an error.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Problem")]
pub(crate) struct Refusal<'a> {
    /// Why it is not answered, or nothing was done, and the remedy.
    pub(crate) error: &'a str,
}

/// An operation, without its path and the schema of its answer.
pub(crate) struct Operation(Map<String, Value>);

/// `id` is its name in generated clients; `answer` describes the document that it returns.
pub(crate) fn operation(id: &str, summary: &str, answer: &str) -> Operation {
    Operation(object(json!({
        "operationId": id,
        "summary": summary,
        "parameters": [],
        "responses": {
            "200": { "description": answer },
            "default": { "$ref": "#/components/responses/Problem" },
        },
    })))
}

impl Operation {
    /// With these texts in its query; each has a description, which may be empty.
    pub(crate) fn takes(self, texts: &[(&str, &str)]) -> Self {
        let text = json!({ "type": "string" });
        texts.iter().fold(self, |all, (name, says)| all.parameter(name, false, says, &text))
    }

    /// With a field in its query that has to be there.
    pub(crate) fn needs(self, name: &str, of_type: &str) -> Self {
        self.parameter(name, true, "", &json!({ "type": of_type }))
    }

    /// With a field in its query that is one of these: the first, unless it is given.
    pub(crate) fn chooses(self, name: &str, choices: &[&str]) -> Self {
        self.parameter(name, false, "", &json!({ "type": "string", "enum": choices, "default": choices[0] }))
    }

    /// With the fields of an action in its query.
    pub(crate) fn takes_action(self) -> Self {
        action().into_iter().fold(self, |all, (name, schema)| {
            let is_needed = ["kind", "action"].contains(&name);
            all.parameter(name, is_needed, "", &schema)
        })
    }

    /// With the fields of an action in its body.
    pub(crate) fn reads_action(mut self) -> Self {
        let one_or_more =
            |(name, schema): (&'static str, Value)| match is_chosen(name) || name.ends_with("header") {
                true => {
                    let all = json!({ "type": "array", "items": schema, "maxItems": CHOSEN_MAX });
                    (name.to_owned(), json!({ "oneOf": [schema, all] }))
                }
                false => (name.to_owned(), schema),
            };
        let mut properties: Map<String, Value> = action().into_iter().map(one_or_more).collect();
        properties.insert("note".to_owned(), json!({ "type": "string", "maxLength": NOTE_BYTES_MAX }));
        let schema = json!({
            "type": "object",
            "description": "The fields of the dry run, with `note` for the audit; `shown` of its answer confirms its rows",
            "required": ["kind", "action"],
            "properties": properties,
            "additionalProperties": false,
        });
        let body = json!({ "required": true, "content": { "application/json": { "schema": schema } } });
        self.0.insert("requestBody".to_owned(), body);
        self
    }

    fn parameter(mut self, name: &str, is_needed: bool, says: &str, schema: &Value) -> Self {
        self.push(json!({ "in": "query", "name": name, "required": is_needed, "schema": schema }), says);
        self
    }

    fn push(&mut self, mut parameter: Value, says: &str) {
        if !says.is_empty() {
            parameter["description"] = says.into();
        }
        if let Some(Value::Array(all)) = self.0.get_mut("parameters") {
            all.push(parameter);
        }
    }
}

/// The fields of all actions, and their schemas.
fn action() -> Vec<(&'static str, Value)> {
    let names = Action::all_fields().into_iter().filter(|name| *name != REPLY);
    let texts = names.map(|name| (name, json!({ "type": "string" })));
    let [kinds, actions] = Action::all_names();
    let mut all = vec![
        ("kind", json!({ "type": "string", "enum": kinds })),
        ("action", json!({ "type": "string", "enum": actions })),
        ("all", json!({ "type": "boolean" })),
        ("rate", json!({ "type": "number" })),
        ("shown", json!({ "type": "string" })),
    ];
    all.extend(texts);
    all
}

/// All operations, as routes add them.
pub(crate) struct Description {
    paths: Map<String, Value>,
    schemas: SchemaGenerator,
}

impl Default for Description {
    fn default() -> Self {
        let settings = SchemaSettings::draft2020_12().for_serialize().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        });
        Self { paths: Map::new(), schemas: settings.into_generator() }
    }
}

impl Description {
    /// Adds an operation that answers with the `V` of a page; returns its path.
    pub(crate) fn add<V: JsonSchema>(
        &mut self,
        method: &str,
        page: &str,
        mut operation: Operation,
    ) -> String {
        let path = path_of(page);
        for name in path.split('{').skip(1).filter_map(|rest| rest.split('}').next()) {
            let says = if name == "name" { "A database, as the file names it" } else { "" };
            let schema = json!({ "type": "string" });
            operation.push(json!({ "in": "path", "name": name, "required": true, "schema": schema }), says);
        }
        let mut document = Value::Object(operation.0);
        document["responses"]["200"]["content"] = self.content::<V>();
        let methods = self.paths.entry(path.clone()).or_insert_with(|| json!({}));
        methods[method] = document;
        path
    }

    fn content<V: JsonSchema>(&mut self) -> Value {
        json!({ "application/json": { "schema": self.schemas.subschema_for::<V>() } })
    }

    /// The document.
    pub(crate) fn finish(mut self) -> Value {
        let problem = self.content::<Refusal<'_>>();
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": "Oncebox console",
                "version": "1",
                "description": "The data of the console's pages; times are RFC 3339 in UTC. \
                                Sign in with HTTP basic: a name and its token.",
            },
            "security": [{}, { "basic": [] }],
            "paths": self.paths,
            "components": {
                "securitySchemes": { "basic": { "type": "http", "scheme": "basic" } },
                "responses": {
                    "Problem": { "description": "Nothing was done, or it cannot be answered", "content": problem },
                },
                "schemas": self.schemas.take_definitions(true),
            },
        })
    }
}

/// The address of a page's data.
fn path_of(page: &str) -> String {
    match page.strip_prefix("/db/") {
        Some(rest) => format!("/api/v1/databases/{rest}"),
        None if page == "/" => "/api/v1/databases".to_owned(),
        None => format!("/api/v1{page}"),
    }
}

fn object(value: Value) -> Map<String, Value> {
    if let Value::Object(object) = value { object } else { Map::new() }
}
