//! A page and its JSON are one: the same code reads the data, and the address says how it is shown.

use std::sync::Arc;

use axum::{
    Router,
    handler::Handler,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use maud::{Markup, html};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    api::{Description, Operation, Refusal},
    ask::{Ask, Console},
    html::layout,
    problem::Problem,
};

/// The data of a page.
pub(crate) trait View: Serialize + JsonSchema + Send {
    fn title(&self) -> String;
    fn body(&self, ask: &Ask) -> Markup;
}

/// The routes of a console, and the description of those that are in its API.
#[derive(Default)]
pub(crate) struct Routes {
    pub(crate) router: Router<Arc<Console>>,
    pub(crate) api: Description,
}

impl Routes {
    /// Serves the data of `load` as a page at `page`, and as JSON at its address of the API.
    pub(crate) fn view<V, F>(mut self, page: &str, api: Operation, load: fn(Arc<Ask>) -> F) -> Self
    where
        F: Future<Output = Result<V, Problem>> + Send + 'static,
        V: View + 'static,
    {
        let api = self.api.add::<V>("get", page, api);
        let shown = move |ask: Ask| async move {
            let ask = Arc::new(ask);
            match load(Arc::clone(&ask)).await {
                Ok(view) => html(StatusCode::OK, &layout::page(&ask, &view.title(), &view.body(&ask))),
                Err(problem) => problem_page(&ask, &problem),
            }
        };
        let read = move |ask: Ask| async move { document(load(Arc::new(ask)).await) };
        self.router = self.router.route(page, get(shown)).route(&api, get(read));
        self
    }

    /// Serves the action of a form.
    pub(crate) fn does<T: 'static>(mut self, page: &str, handler: impl Handler<T, Arc<Console>>) -> Self {
        self.router = self.router.route(page, post(handler));
        self
    }

    /// Serves the same of a program, which gets a `V`.
    pub(crate) fn acts<V: JsonSchema, T: 'static>(
        mut self,
        page: &str,
        api: Operation,
        handler: impl Handler<T, Arc<Console>>,
    ) -> Self {
        let api = self.api.add::<V>("post", page, api);
        self.router = self.router.route(&api, post(handler));
        self
    }
}

pub(crate) fn html(status: StatusCode, page: &Markup) -> Response {
    (status, [(CONTENT_TYPE, "text/html; charset=utf-8")], page.0.clone()).into_response()
}

pub(crate) fn problem_page(ask: &Ask, problem: &Problem) -> Response {
    let body = html! {
        p.problem role="alert" { (problem.text()) }
        p { a href="/" { "All databases" } }
    };
    html(problem.status(), &layout::page(ask, title(problem), &body))
}

fn title(problem: &Problem) -> &'static str {
    match problem {
        Problem::Bad(_) => "The request is wrong",
        Problem::Forbidden(_) => "Not allowed",
        Problem::NotFound(_) => "Not found",
        Problem::Conflict(_) => "Nothing was done",
        Problem::Away(_) => "Not answered",
    }
}

/// JSON, or the problem as JSON.
pub(crate) fn document<T: Serialize>(result: Result<T, Problem>) -> Response {
    match result {
        Ok(value) => json(StatusCode::OK, &value),
        Err(problem) => json(problem.status(), &Refusal { error: problem.text() }),
    }
}

/// A refusal before any page: JSON for a program, a line of text for others.
pub(crate) fn refusal(path: &str, status: StatusCode, error: &str) -> Response {
    match path.starts_with("/api/") {
        true => json(status, &Refusal { error }),
        false => (status, format!("{error}\n")).into_response(),
    }
}

fn json<T: Serialize>(status: StatusCode, value: &T) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => (status, [(CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
