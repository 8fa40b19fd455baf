//! Every address of a console.

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    http::{StatusCode, header::CONTENT_TYPE},
    middleware::from_fn_with_state,
    response::IntoResponse,
    routing::{get, post},
};
use bytes::Bytes;

use crate::{
    access::guard,
    api::operation,
    ask::{Ask, Console},
    events,
    html::assets,
    jobs::Job,
    pages,
    problem::Problem,
    sign_in,
    view::{Routes, document, problem_page, refusal},
};

const AFTER: (&str, &str) = ("after", "Where the page begins: `after` of the page before");
const SORT: (&str, &str) = ("sort", pages::sort::SORT);
const REASON: (&str, &str) = ("reason", "A part of it");
const SUBJECT: (&str, &str) = ("subject", "A subject, or a pattern with * and >");

fn routes() -> Routes {
    let begin = "An action: begins a job, which can be looked at; the console's page of the job stops it";
    of_sagas(of_messages(of_times(of_databases(Routes::default()))))
        .view(
            "/find",
            operation(
                "find",
                "Messages and sagas by key, ordering key, business id, subject or trace",
                "Those of each database",
            )
            .needs("q", "string"),
            pages::find::load,
        )
        .view(
            "/key",
            operation(
                "traceKey",
                "A key's way over all databases",
                "The trace of each database that knows the key",
            )
            .needs("key", "string"),
            pages::key::load,
        )
        .view(
            "/db/{name}/act",
            operation("previewAction", "A dry run of an action", "The things that it would change")
                .takes_action(),
            pages::act::load,
        )
        .acts::<Job, _>(
            "/db/{name}/act",
            operation("beginAction", begin, "The job").reads_action(),
            pages::act::post,
        )
        .does("/db/{name}/act", pages::act::confirm)
        .does("/jobs/{id}/stop", pages::jobs::stop)
}

/// Databases, and everything but their messages.
fn of_databases(routes: Routes) -> Routes {
    routes
        .view(
            "/",
            operation("listDatabases", "All databases, those that need somebody first", "A row for each"),
            pages::overview::load,
        )
        .view(
            "/settings",
            operation("getSettings", "The settings of this console, and those of relays", "As they are"),
            pages::settings::load,
        )
        .view(
            "/jobs",
            operation("listJobs", "Actions under way, and the last ones that have ended", "The newest first"),
            pages::jobs::load,
        )
        .view(
            "/jobs/{id}",
            operation("getJob", "One action", "With `end` null while it is under way"),
            pages::jobs::load_one,
        )
        .view(
            "/db/{name}",
            operation(
                "getDatabase",
                "One database: its status, its last hour, and the findings of the doctor",
                "As it was looked at last",
            ),
            pages::database::load,
        )
        .view(
            "/db/{name}/pauses",
            operation("listPauses", "Pauses and throttles", "All of them")
                .takes(&[("sort", "A column of the page; behind a minus from the other end")]),
            pages::pauses::load,
        )
        .view(
            "/db/{name}/losses",
            operation("listLosses", "Losses of streams", "The ten newest"),
            pages::losses::load,
        )
        .view(
            "/db/{name}/doctor",
            operation(
                "listFindings",
                "The last findings of the doctor",
                "With `findings` null until the first examination has ended",
            ),
            pages::doctor::load,
        )
        .view(
            "/db/{name}/audit",
            operation("listAudit", "Actions of operators, the newest first", "100 rows")
                .takes(&[SORT, AFTER]),
            pages::audit::load,
        )
}

/// Times of a database.
fn of_times(routes: Routes) -> Routes {
    routes
        .view(
            "/db/{name}/history",
            operation(
                "getHistory",
                "What happened in an hour, a day or a week up to a time, as relays wrote it down",
                "Points, marks and subjects",
            )
            .chooses("range", &["hour", "day", "week"])
            .takes(&[
                ("until", "Its end, as 2026-11-29T12:00:00Z; now without one"),
                ("at", "A moment to look at"),
            ]),
            pages::history::load,
        )
        .view(
            "/db/{name}/proof",
            operation(
                "proveTime",
                "What was enqueued in a time, and whether streams have it and inboxes handled it",
                "With `proof` null without a time",
            )
            .takes(&[
                ("since", "The time's beginning: 24h, or 2026-11-29T00:00:00Z"),
                ("until", "Its end; now without one"),
            ]),
            pages::proof::load,
        )
}

/// Messages of a database.
fn of_messages(routes: Routes) -> Routes {
    routes
        .view(
            "/db/{name}/set-aside",
            operation(
                "listSetAside",
                "Messages and dead letters that are set aside",
                "100 rows, and on the first page groups by reason and subject",
            )
            .chooses("kind", &["parked", "dead", "failing", "dead-letters"])
            .takes(&[("key", ""), SUBJECT, REASON, ("ordering-key", "Of parked and dead messages")])
            .takes(&[("scope", "Of failing messages and dead letters"), SORT, AFTER]),
            pages::set_aside::load,
        )
        .view(
            "/db/{name}/message",
            operation(
                "getMessage",
                "A message with its headers, and its payload where the console shows payloads",
                "The message",
            )
            .needs("key", "string"),
            pages::message::message,
        )
        .view(
            "/db/{name}/letter",
            operation("getDeadLetter", "A dead letter of an inbox, with the same", "The letter")
                .needs("id", "integer"),
            pages::message::letter,
        )
        .view(
            "/db/{name}/edit",
            operation(
                "getEditable",
                "The headers of a dead message or letter that can be edited, and its payload where the console shows payloads",
                "What can be edited",
            )
            .chooses("kind", &["dead-letters", "dead"])
            .takes(&[("id", "Of a dead letter"), ("key", "Of a dead message")]),
            pages::edit::load,
        )
        .does("/db/{name}/edit", pages::edit::preview)
        .view(
            "/db/{name}/delayed",
            operation("listDelayed", "Messages that wait for their time", "100 rows").takes(&[
                ("key", ""),
                SUBJECT,
                ("ordering-key", ""),
                SORT,
                AFTER,
            ]),
            pages::delayed::load,
        )
        .view(
            "/db/{name}/replays",
            operation("listReplays", "Replays that are still to be sent", "100 rows").takes(&[
                ("key", ""),
                SUBJECT,
                REASON,
                ("ordering-key", ""),
                ("request", ""),
                SORT,
                AFTER,
            ]),
            pages::replays::load,
        )
}

/// Sagas of a database.
fn of_sagas(routes: Routes) -> Routes {
    routes
        .view(
            "/db/{name}/sagas",
            operation(
                "listSagas",
                "Sagas in the order of their beginning; finished ones only with their state, or key",
                "100 rows",
            )
            .takes(&[
                ("type", ""),
                ("state", ""),
                ("key", ""),
                ("sort", pages::sagas::SORT),
                AFTER,
            ]),
            pages::sagas::load,
        )
        .view(
            "/db/{name}/saga",
            operation("getSaga", "One saga with its graph, its steps and its history", "The saga")
                .needs("key", "string"),
            pages::saga::load,
        )
}

pub(crate) fn router(console: Arc<Console>) -> Router {
    let guard = from_fn_with_state(Arc::clone(&console), guard::check);
    let missing = async |ask: Ask| {
        let problem = Problem::NotFound("there is no such page".to_owned());
        match ask.path.starts_with("/api/") {
            true => document::<()>(Err(problem)),
            false => problem_page(&ask, &problem),
        }
    };
    let Routes { router, api } = routes();
    let description = Bytes::from(api.finish().to_string());
    let describe = async move || ([(CONTENT_TYPE, "application/json")], description.clone());
    router
        .route("/api/v1/openapi.json", get(describe))
        .route("/events", get(events::serve))
        .route("/sign-in", get(sign_in::show).post(sign_in::begin))
        .route("/sign-out", post(sign_in::end))
        .route("/livez", get(async || (StatusCode::OK, "ok\n").into_response()))
        .route("/assets/{hash}/{file}", get(async |request: Request| assets::serve(request.uri().path())))
        .fallback(missing)
        .method_not_allowed_fallback(async |request: Request| {
            let problem = "the address is known, and takes another method; see /api/v1/openapi.json";
            refusal(request.uri().path(), StatusCode::METHOD_NOT_ALLOWED, problem)
        })
        .layer(guard)
        .with_state(console)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_operation_has_an_id_of_its_own_and_schemas_that_are_there() {
        let document = routes().api.finish();
        let paths = document["paths"].as_object().unwrap();
        let operations: Vec<_> = paths
            .iter()
            .flat_map(|(path, methods)| methods.as_object().unwrap().values().map(move |one| (path, one)))
            .collect();
        let ids: BTreeSet<&str> =
            operations.iter().map(|(_, operation)| operation["operationId"].as_str().unwrap()).collect();
        assert_eq!((ids.len(), operations.len()), (23, 23), "{ids:?}");
        for (path, operation) in operations {
            let named = operation["parameters"].as_array().unwrap();
            let in_path = named.iter().filter(|parameter| parameter["in"] == "path").count();
            assert_eq!(in_path, path.matches('{').count(), "{path}");
            assert_eq!(operation["responses"]["default"]["$ref"], "#/components/responses/Problem");
            let schema = &operation["responses"]["200"]["content"]["application/json"]["schema"];
            let target = schema["$ref"].as_str().and_then(|target| target.strip_prefix('#')).unwrap();
            assert!(document.pointer(target).unwrap()["properties"].is_object(), "{path}: {target}");
        }
    }
}
