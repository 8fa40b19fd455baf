//! Streams that copy others, as mirrors or from sources: JetStream does not list these among the
//! consumers of the stream that they copy.

use async_nats::jetstream::{self, response::Response};
use oncebox_connect::{
    error::error_chain,
    nats::{Connection, unless_denied},
};
use serde::Deserialize;
use serde_json::json;

/// Names of streams of this account, of the first 256, with those that they copy.
pub(super) async fn copies(
    connection: &Connection,
    context: &jetstream::Context,
) -> Result<Vec<(String, Vec<String>)>, String> {
    #[derive(Deserialize)]
    struct Page {
        streams: Option<Vec<Listed>>,
    }
    #[derive(Deserialize)]
    struct Listed {
        config: Config,
    }
    #[derive(Deserialize)]
    struct Config {
        name: String,
        mirror: Option<Origin>,
        sources: Option<Vec<Origin>>,
    }
    #[derive(Deserialize)]
    struct Origin {
        name: String,
    }
    let asking = async {
        let first = json!({ "offset": 0 });
        context.request("STREAM.LIST", &first).await.map_err(|error| error_chain(&error))
    };
    match unless_denied(connection, asking).await? {
        Response::Ok(Page { streams }) => {
            let streams = streams.unwrap_or_default().into_iter().map(|listed| listed.config);
            let streams = streams.map(|Config { name, mirror, sources }| {
                let origins = mirror.into_iter().chain(sources.unwrap_or_default());
                (name, origins.map(|origin| origin.name).collect())
            });
            Ok(streams.collect())
        }
        Response::Err { error } => Err(error.to_string()),
    }
}
