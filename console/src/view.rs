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
use serde::Serialize;
use serde_json::json;

use crate::{
    ask::{Ask, Console},
    html::layout,
    problem::Problem,
};

/// The data of a page.
pub(crate) trait View: Serialize + Send {
    fn title(&self) -> String;
    fn body(&self, ask: &Ask) -> Markup;
}

/// The routes of a console, and which of them are in its API.
#[derive(Default)]
pub(crate) struct Routes {
    pub(crate) router: Router<Arc<Console>>,
    /// Method and path.
    pub(crate) api: Vec<(&'static str, String)>,
}

impl Routes {
    /// Serves the data of `load` as a page at `page`, and as JSON at `/api/v1` + `api`.
    pub(crate) fn view<V, F>(mut self, page: &str, api: &str, load: fn(Arc<Ask>) -> F) -> Self
    where
        F: Future<Output = Result<V, Problem>> + Send + 'static,
        V: View + 'static,
    {
        let api = format!("/api/v1{api}");
        let shown = move |ask: Ask| async move {
            let ask = Arc::new(ask);
            match load(Arc::clone(&ask)).await {
                Ok(view) => html(StatusCode::OK, &layout::page(&ask, &view.title(), &view.body(&ask))),
                Err(problem) => problem_page(&ask, &problem),
            }
        };
        let read = move |ask: Ask| async move { document(load(Arc::new(ask)).await) };
        self.router = self.router.route(page, get(shown)).route(&api, get(read));
        self.api.push(("get", api));
        self
    }

    /// Serves the action of a form.
    pub(crate) fn does<T: 'static>(mut self, page: &str, handler: impl Handler<T, Arc<Console>>) -> Self {
        self.router = self.router.route(page, post(handler));
        self
    }

    /// Serves the same of a program.
    pub(crate) fn acts<T: 'static>(mut self, api: &str, handler: impl Handler<T, Arc<Console>>) -> Self {
        let api = format!("/api/v1{api}");
        self.router = self.router.route(&api, post(handler));
        self.api.push(("post", api));
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
    let (status, text) = match result {
        Ok(value) => (StatusCode::OK, serde_json::to_string(&value)),
        Err(problem) => (problem.status(), serde_json::to_string(&json!({ "error": problem.text() }))),
    };
    match text {
        Ok(text) => (status, [(CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
