//! The contracts as a document of AsyncAPI 3.0.

use serde_json::{Map, Value, json};

use crate::{Contract, Contracts, Mistakes};

impl Contracts {
    /// A document of `AsyncAPI` 3.0: a channel for each subject, an operation for each consumer.
    /// A wildcard is a parameter of the address.
    ///
    /// # Errors
    /// A schema refers to itself, which has no form in this document.
    pub fn asyncapi(&self) -> Result<Value, Mistakes> {
        let recursive = self.all.iter().filter(|contract| has_reference(&contract.schema.whole));
        let recursive = recursive.map(|contract| {
            format!("{}: its schema refers to itself, which the export cannot show", contract.subject)
        });
        let recursive: Vec<String> = recursive.collect();
        if !recursive.is_empty() {
            return Err(Mistakes(recursive));
        }
        let (mut channels, mut operations) = (Map::new(), Map::new());
        for (number, contract) in self.all.iter().enumerate() {
            let name = format!("{}_{number}", identifier(&contract.subject));
            let channel = json!({ "$ref": format!("#/channels/{name}") });
            for (at, consumer) in contract.consumers.iter().enumerate() {
                let operation = json!({ "action": "receive", "channel": channel, "title": consumer });
                operations.insert(format!("{name}_{}_{at}", identifier(consumer)), operation);
            }
            channels.insert(name, contract.channel());
        }
        let info = json!({ "title": self.title, "version": self.version });
        Ok(json!({
            "asyncapi": "3.0.0",
            "info": info,
            "defaultContentType": "application/json",
            "channels": channels,
            "operations": operations,
        }))
    }
}

impl Contract {
    fn channel(&self) -> Value {
        let mut parameters = Map::new();
        let tokens: Vec<String> = self
            .subject
            .split('.')
            .enumerate()
            .map(|(at, token)| match token {
                "*" | ">" => {
                    let name = format!("token{}", at + 1);
                    let meaning = if token == "*" { "One token" } else { "One token or more" };
                    parameters.insert(name.clone(), json!({ "description": meaning }));
                    format!("{{{name}}}")
                }
                token => token.to_owned(),
            })
            .collect();
        let examples: Vec<Value> =
            self.examples.iter().map(|payload| json!({ "payload": payload })).collect();
        let mut message = json!({ "contentType": "application/json", "payload": self.schema.whole });
        if !examples.is_empty() {
            message["examples"] = json!(examples);
        }
        let mut channel = json!({ "address": tokens.join("."), "messages": { "message": message } });
        if !parameters.is_empty() {
            channel["parameters"] = json!(parameters);
        }
        channel
    }
}

fn identifier(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

fn has_reference(schema: &Value) -> bool {
    match schema {
        Value::Object(object) => {
            object.get("$ref").is_some_and(Value::is_string) || object.values().any(has_reference)
        }
        Value::Array(all) => all.iter().any(has_reference),
        _ => false,
    }
}
