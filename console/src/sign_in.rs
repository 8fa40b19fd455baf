//! `/sign-in` and `/sign-out`.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{
        HeaderValue, StatusCode,
        header::{LOCATION, ORIGIN, SET_COOKIE},
    },
    response::{IntoResponse, Response},
};

use crate::{
    access::{
        guard::{Peer, cookie_name, refuse_secret, session_id},
        tokens::Token,
    },
    ask::{Ask, Console},
    fields::Fields,
    form,
    html::layout,
    view,
};

pub(crate) async fn show(ask: Ask) -> Response {
    view::html(StatusCode::OK, &layout::sign_in(next(&ask.query), None))
}

pub(crate) async fn begin(State(console): State<Arc<Console>>, request: Request) -> Response {
    // A browser says where its page is from; if a proxy before the console has TLS, the cookie goes
    // no other way.
    let origin = request.headers().get(ORIGIN).and_then(|origin| origin.to_str().ok());
    let secure = if origin.is_some_and(|origin| origin.starts_with("https://")) { "; Secure" } else { "" };
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
    let fields = match form::fields(request, form::SIGN_IN_BYTES_MAX).await {
        Ok(fields) => fields,
        Err(problem) => return (problem.status(), problem.text().to_owned()).into_response(),
    };
    let secret = fields.get("secret").unwrap_or_default();
    let Some(person) = Token::find(&console.settings.tokens, &console.key, None, secret) else {
        refuse_secret(&console, peer).await;
        let problem = Some("The console does not know this token.");
        return view::html(StatusCode::UNAUTHORIZED, &layout::sign_in(next(&fields), problem));
    };
    tracing::info!(name = person.name, "signed in");
    let id = console.sessions.begin(&person.name, person.role);
    let name = cookie_name(&console.settings);
    // Lax: a link in a chat finds the person signed in. Posts of other sites are refused anyway.
    let cookie = format!("{name}={id}; Path=/; HttpOnly; SameSite=Lax{secure}");
    go(next(&fields), &cookie)
}

pub(crate) async fn end(State(console): State<Arc<Console>>, request: Request) -> Response {
    let name = cookie_name(&console.settings);
    if let Some(id) = session_id(&name, request.headers()) {
        console.sessions.end(id);
    }
    go("/sign-in", &format!("{name}=; Path=/; HttpOnly; SameSite=Lax; Max-Age=0"))
}

fn go(path: &str, cookie: &str) -> Response {
    let mut response = (StatusCode::SEE_OTHER, "").into_response();
    for (name, value) in [(LOCATION, path), (SET_COOKIE, cookie)] {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// A page of this console, and of no other: `//host` and `/\host` lead elsewhere, and browsers drop
/// tabs and ends of lines.
fn next(fields: &Fields) -> &str {
    let is_ours = |path: &&str| {
        path.starts_with('/')
            && !path.starts_with("//")
            && !path.contains(|c: char| c == '\\' || c.is_control())
    };
    fields.get("next").filter(is_ours).unwrap_or("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_in_leads_nowhere_else() {
        let to = |path: &str| next(&Fields(vec![("next".to_owned(), path.to_owned())])).to_owned();
        assert_eq!(to("/db/a?b=c"), "/db/a?b=c");
        for foreign in
            ["//evil.example", "/\\evil.example", "/\t/evil.example", "https://evil.example", "", "evil"]
        {
            assert_eq!(to(foreign), "/", "{foreign}");
        }
    }
}
