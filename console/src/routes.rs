//! Every address of a console.

use std::sync::Arc;

use axum::{
    Router,
    extract::{Request, State},
    http::{StatusCode, header::CONTENT_TYPE},
    middleware::from_fn_with_state,
    response::IntoResponse,
    routing::{get, post},
};

use crate::{
    access::guard,
    ask::{Ask, Console},
    events,
    html::assets,
    pages,
    problem::Problem,
    sign_in,
    view::{Routes, document, problem_page},
};

/// The description of the API, kept by hand; a test compares it with the routes.
const OPENAPI: &str = include_str!("assets/openapi.json");

fn views() -> Routes {
    Routes::default()
        .view("/", "/databases", pages::overview::load)
        .view("/db/{name}", "/databases/{name}", pages::database::load)
        .view("/find", "/find", pages::find::load)
        .view("/key", "/key", pages::key::load)
        .view("/settings", "/settings", pages::settings::load)
        .view("/jobs", "/jobs", pages::jobs::load)
        .view("/jobs/{id}", "/jobs/{id}", pages::jobs::load_one)
        .view("/db/{name}/set-aside", "/databases/{name}/set-aside", pages::set_aside::load)
        .view("/db/{name}/message", "/databases/{name}/message", pages::message::message)
        .view("/db/{name}/letter", "/databases/{name}/letter", pages::message::letter)
        .view("/db/{name}/sagas", "/databases/{name}/sagas", pages::sagas::load)
        .view("/db/{name}/saga", "/databases/{name}/saga", pages::saga::load)
        .view("/db/{name}/delayed", "/databases/{name}/delayed", pages::delayed::load)
        .view("/db/{name}/pauses", "/databases/{name}/pauses", pages::pauses::load)
        .view("/db/{name}/replays", "/databases/{name}/replays", pages::replays::load)
        .view("/db/{name}/losses", "/databases/{name}/losses", pages::losses::load)
        .view("/db/{name}/doctor", "/databases/{name}/doctor", pages::doctor::load)
        .view("/db/{name}/audit", "/databases/{name}/audit", pages::audit::load)
        .view("/db/{name}/act", "/databases/{name}/act", pages::act::load)
        .does("/db/{name}/act", pages::act::confirm)
        .does("/jobs/{id}/stop", pages::jobs::stop)
        .acts("/databases/{name}/act", pages::act::post)
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
    views()
        .router
        .route("/api/v1/openapi.json", get(async || ([(CONTENT_TYPE, "application/json")], OPENAPI)))
        .route("/events", get(events::serve))
        .route("/sign-in", get(sign_in::show).post(sign_in::begin))
        .route("/sign-out", post(sign_in::end))
        .route("/livez", get(async || (StatusCode::OK, "ok\n").into_response()))
        .route("/assets/{hash}/{file}", get(async |request: Request| assets::serve(request.uri().path())))
        .fallback(missing)
        .method_not_allowed_fallback(async |State(_): State<Arc<Console>>| StatusCode::METHOD_NOT_ALLOWED)
        .layer(guard)
        .with_state(console)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn the_description_of_the_api_has_every_route_and_no_other() {
        let document: Value = serde_json::from_str(OPENAPI).unwrap();
        let paths = document["paths"].as_object().unwrap();
        let described: BTreeSet<(String, String)> = paths
            .iter()
            .flat_map(|(path, methods)| {
                methods.as_object().unwrap().keys().map(|method| (method.clone(), path.clone()))
            })
            .collect();
        let served = views().api.into_iter().map(|(method, path)| (method.to_owned(), path));
        assert_eq!(served.collect::<BTreeSet<_>>(), described);
        for (path, methods) in paths {
            for operation in methods.as_object().unwrap().values() {
                let named = operation["parameters"].as_array().into_iter().flatten();
                let in_path = named.filter(|parameter| parameter["in"] == "path").count();
                assert_eq!(in_path, path.matches('{').count(), "{path}");
                assert!(
                    operation["summary"].is_string() && operation["responses"]["200"].is_object(),
                    "{path}"
                );
            }
        }
    }
}
