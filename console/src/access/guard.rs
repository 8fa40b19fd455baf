//! The checks before each request: the name that it was sent to, the page that it came from, and
//! who asks.

use std::{net::IpAddr, sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    http::{
        HeaderMap, HeaderValue, Method, StatusCode,
        header::{AUTHORIZATION, COOKIE, HOST, LOCATION, ORIGIN, WWW_AUTHENTICATE},
        uri::Authority,
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use tokio::time::{sleep, timeout};

use super::{
    sessions::User,
    tokens::{Role, Token},
};
use crate::{ask::Console, fields::Fields, settings::Settings, view::refusal};

/// The longest time until an answer begins.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// A wrong secret is answered no sooner, one after another, so that many cannot be tried out.
const WRONG_SECRET_PAUSE: Duration = Duration::from_millis(250);

/// The address that a connection came from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// Headers of every answer. Nothing comes from elsewhere, nothing is inline, no page frames it.
const HEADERS: &[(&str, &str)] = &[
    (
        "content-security-policy",
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; \
         form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    ),
    ("x-frame-options", "DENY"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];

/// Lets a request through, or answers it.
pub(crate) async fn check(State(console): State<Arc<Console>>, request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let mut response = match refused(&console.settings, &request) {
        Some((status, problem)) => refusal(&path, status, problem),
        None => admit(&console, request, next).await,
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(*name, HeaderValue::from_static(value));
    }
    if !path.starts_with("/assets/") {
        headers.insert("cache-control", HeaderValue::from_static("no-store"));
    }
    response
}

async fn admit(console: &Console, mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
    let user = who(console, request.headers(), peer);
    let is_open = ["/sign-in", "/livez"].contains(&request.uri().path())
        || request.uri().path().starts_with("/assets/");
    match user {
        Some(user) => {
            console.fleet.is_seen();
            request.extensions_mut().insert(user);
        }
        None if is_open => {
            let (name, proof) = (String::new(), String::new());
            request.extensions_mut().insert(User { name, role: Role::Reader, proof });
        }
        None => {
            if request.headers().contains_key(AUTHORIZATION) {
                refuse_secret(console, peer).await;
            }
            return ask_to_sign_in(console, &request);
        }
    }
    let path = request.uri().path().to_owned();
    let slow =
        |_| refusal(&path, StatusCode::GATEWAY_TIMEOUT, "no answer in time; ask again, or ask for less");
    timeout(ANSWER_MAX, next.run(request)).await.unwrap_or_else(slow)
}

/// Tells of a wrong secret, and takes its time.
pub(crate) async fn refuse_secret(console: &Console, peer: Option<IpAddr>) {
    let mut wrong = console.wrong_secrets.lock().await;
    *wrong += 1;
    // Each power of two: a search for secrets does not fill the log.
    if wrong.is_power_of_two() {
        tracing::warn!(count = *wrong, ?peer, "a sign-in with a secret that the console does not know");
    }
    sleep(WRONG_SECRET_PAUSE).await;
}

/// A page leads to the form, also from a form whose session has ended; a program is told how to
/// sign in. A browser is not: it would open its own box.
fn ask_to_sign_in(console: &Console, request: &Request) -> Response {
    let has_form = !console.settings.tokens.is_empty();
    let is_page = !request.uri().path().starts_with("/api/")
        && request.uri().path() != "/events"
        && !request.headers().contains_key(AUTHORIZATION);
    let is_browser = request.headers().contains_key("sec-fetch-mode");
    if has_form && is_page {
        let path = request.uri().path_and_query().filter(|_| request.method() == Method::GET);
        let path = path.map_or("/", |path| path.as_str());
        let link = Fields::link("/sign-in", &[("next", path)]);
        return (StatusCode::SEE_OTHER, [(LOCATION, link)]).into_response();
    }
    let how = "sign in: HTTP basic with a name and its token";
    let mut response = refusal(request.uri().path(), StatusCode::UNAUTHORIZED, how);
    if has_form && !is_browser {
        let how = HeaderValue::from_static("Basic realm=\"oncebox\", charset=\"UTF-8\"");
        response.headers_mut().insert(WWW_AUTHENTICATE, how);
    }
    response
}

/// The person who asks; `None` for a stranger.
fn who(console: &Console, headers: &HeaderMap, peer: Option<IpAddr>) -> Option<User> {
    let settings = &console.settings;
    if !settings.has_sign_in() {
        let role = Role::Operator;
        return Some(User { name: settings.by.clone(), role, proof: "local".to_owned() });
    }
    if let Some(proxy) = &settings.proxy
        && peer.is_some_and(|peer| proxy.addresses.contains(&peer.to_canonical()))
    {
        // Of two names the proxy has written one, and it cannot be told which.
        let mut names = headers.get_all(&proxy.header).iter();
        let name = names.next().filter(|_| names.next().is_none())?.to_str().ok()?.trim();
        let role = if proxy.operators.iter().any(|one| one == name) { Role::Operator } else { Role::Reader };
        let is_name = !name.is_empty() && name.len() <= 255;
        return is_name.then(|| User { name: name.to_owned(), role, proof: format!("proxy {name}") });
    }
    if let Some(user) = session_id(&cookie_name(settings), headers).and_then(|id| console.sessions.find(id)) {
        return Some(user);
    }
    let basic = headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Basic ")?;
    let pair = String::from_utf8(BASE64_STANDARD.decode(basic.trim()).ok()?).ok()?;
    let (name, secret) = pair.split_once(':')?;
    let Token { name, role, .. } = Token::find(&settings.tokens, &console.key, Some(name), secret)?;
    Some(User { name: name.clone(), role: *role, proof: format!("basic {name}") })
}

/// A browser sends the cookies of all ports of a host: each console has a name of its own.
pub(crate) fn cookie_name(settings: &Settings) -> String {
    format!("oncebox_session_{}", settings.listen.port())
}

pub(crate) fn session_id<'a>(cookie_name: &str, headers: &'a HeaderMap) -> Option<&'a str> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == cookie_name).map(|(_, id)| id)
}

/// Why a request is not looked at. A page of another site can have a browser send requests here:
/// under another name, which leads to this address, or from its own.
fn refused(settings: &Settings, request: &Request) -> Option<(StatusCode, &'static str)> {
    let headers = request.headers();
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if !is_ours(settings, host) {
        return Some((
            StatusCode::MISDIRECTED_REQUEST,
            "this console is not known under that name; give the name with --host",
        ));
    }
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let is_elsewhere = text("sec-fetch-site").is_some_and(|site| !["same-origin", "none"].contains(&site));
    let origin = text(ORIGIN.as_str()).map(|origin| origin.split_once("://").map(|(_, authority)| authority));
    let is_foreign = match *request.method() {
        // A link in a chat leads here; nothing else of a foreign page needs an answer.
        Method::GET | Method::HEAD => is_elsewhere && text("sec-fetch-mode") != Some("navigate"),
        _ => is_elsewhere || origin.is_some_and(|authority| authority != Some(host)),
    };
    is_foreign.then_some((StatusCode::FORBIDDEN, "the request comes from a page of somebody else"))
}

/// A name that leads here may be one that a stranger has made; an address cannot be.
fn is_ours(settings: &Settings, host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let mut names = settings.hosts.iter().map(String::as_str).chain(["localhost"]);
    !host.contains('@') && (is_address || names.any(|ours| ours.eq_ignore_ascii_case(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(hosts: &[&str]) -> Settings {
        Settings {
            listen: ([127, 0, 0, 1], 0).into(),
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            allows_actions: true,
            shows_payloads: false,
            by: "console".to_owned(),
            tokens: Vec::new(),
            proxy: None,
        }
    }

    fn check(method: Method, headers: &[(&str, &str)]) -> Option<u16> {
        let mut request = Request::builder().method(method).uri("/");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(axum::body::Body::empty()).unwrap();
        refused(&settings(&["Console.example"]), &request).map(|(status, _)| status.as_u16())
    }

    #[test]
    fn only_names_of_its_own_are_served() {
        for host in
            ["localhost", "LOCALHOST:80", "127.0.0.1:8321", "[::1]:8321", "10.1.2.3", "console.example:443"]
        {
            assert_eq!(check(Method::GET, &[("host", host)]), None, "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "",
            "a@localhost",
            "127.0.0.1.nip.io",
            "localhost evil",
        ] {
            assert_eq!(check(Method::GET, &[("host", host)]), Some(421), "{host}");
        }
    }

    #[test]
    fn only_pages_of_its_own_post() {
        let host = ("host", "localhost:8321");
        for allowed in [
            vec![host],
            vec![host, ("origin", "http://localhost:8321")],
            vec![host, ("sec-fetch-site", "same-origin"), ("origin", "https://localhost:8321")],
        ] {
            assert_eq!(check(Method::POST, &allowed), None, "{allowed:?}");
        }
        for foreign in [
            ("origin", "http://evil.example"),
            ("origin", "http://localhost:1"),
            ("origin", "null"),
            ("origin", ""),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            assert_eq!(check(Method::POST, &[host, foreign]), Some(403), "{foreign:?}");
        }
        let foreign = ("sec-fetch-site", "cross-site");
        assert_eq!(
            check(Method::GET, &[host, foreign, ("sec-fetch-mode", "navigate")]),
            None,
            "a link in a chat"
        );
        assert_eq!(
            check(Method::GET, &[host, foreign, ("sec-fetch-mode", "cors")]),
            Some(403),
            "a stream of events"
        );
    }
}
