//! The NATS part of the configuration: URL, who we are, TLS.

use std::path::PathBuf;

use async_nats::{ConnectOptions, ServerAddr};
use percent_encoding::percent_decode_str;

use super::{
    Secret,
    address::{AMBIGUOUS, is_ambiguous},
    is_here,
    reader::Reader,
    stream::is_subject,
    tls,
};

/// How to reach NATS.
#[derive(Clone, Debug)]
pub(crate) struct Nats {
    /// Without credentials, so it may be shown; several servers have commas between them.
    pub(crate) url: String,
    pub(crate) login: Login,
    pub(crate) tls_required: bool,
    pub(crate) tls_first: bool,
    pub(crate) ca_file: Option<PathBuf>,
    /// Certificate and key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
    pub(crate) inbox_prefix: String,
    /// The beginning of subjects for questions to JetStream.
    pub(crate) api: String,
}

/// Of the JetStream of the relay's own account and server.
pub(crate) const DEFAULT_API: &str = "$JS.API";

/// The credentials for NATS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Login {
    Nobody,
    Password { user: String, password: Secret },
    Token(Secret),
    Seed(Secret),
    Credentials(Secret),
}

/// Checks all that concerns NATS; after a mistake the result must not be used.
pub(super) fn nats(read: &mut Reader<'_>) -> Nats {
    let (url, in_url) = url(read);
    let login = login(read, in_url);
    let ca_file = read.file("nats-ca-file", tls::certificates).map(|(path, _)| path);
    let identity = identity(read);
    let mode = read.text("nats-tls").unwrap_or_default();
    if !["auto", "require", "first"].contains(&&*mode) {
        read.mistake("nats-tls", format_args!("{mode:?} is not one of auto, require and first"));
    }
    let inbox_prefix = read.text("nats-inbox-prefix").unwrap_or_default();
    if inbox_prefix.contains(['*', '>']) || !is_subject(&inbox_prefix) {
        read.mistake("nats-inbox-prefix", format_args!("{inbox_prefix:?} is not a subject"));
    }
    let api = api(read);
    let sends_secret = matches!(login, Login::Password { .. } | Login::Token(_));
    if sends_secret && mode == "auto" && ca_file.is_none() && identity.is_none() {
        warn_of_plaintext(read, &url);
    }
    Nats {
        url,
        login,
        tls_required: mode != "auto" || ca_file.is_some() || identity.is_some(),
        tls_first: mode == "first",
        ca_file,
        identity,
        inbox_prefix,
        api,
    }
}

/// Where JetStream is asked: in a domain, below a prefix, or where it usually is.
fn api(read: &mut Reader<'_>) -> String {
    let (domain, prefix) = (read.text("nats-domain"), read.text("nats-api-prefix"));
    let is_plain = |text: &str| !text.contains(['*', '>']) && is_subject(text);
    match (domain, prefix) {
        (Some(_), Some(_)) => {
            read.mistake("nats-api-prefix", "is given, but nats-domain is too; give only one")
        }
        (Some(domain), None) if is_plain(&domain) && !domain.contains('.') => {
            return format!("$JS.{domain}.API");
        }
        (Some(domain), None) => read.mistake("nats-domain", format_args!("{domain:?} is no domain")),
        (None, Some(prefix)) if is_plain(&prefix) => return prefix,
        (None, Some(prefix)) => read.mistake("nats-api-prefix", format_args!("{prefix:?} is not a subject")),
        (None, None) => {}
    }
    DEFAULT_API.to_owned()
}

/// Warns of a secret that may go to another host in plain text: without `--nats-tls` it is the
/// server, or an attacker in its place, that decides whether TLS is used.
fn warn_of_plaintext(read: &mut Reader<'_>, urls: &str) {
    let servers = urls.split(',').filter_map(|url| url.parse::<ServerAddr>().ok());
    let remote = |server: &ServerAddr| !server.tls_required() && !is_here(server.host());
    if let Some(server) = servers.into_iter().find(remote) {
        read.weakness(
            "nats-tls",
            format_args!(
                "is auto, so the password goes to {} in plain text when whoever answers there does not ask for TLS: say \
                 require, or log in with an NKey or credentials, which send nothing secret",
                server.host()
            ),
        );
    }
}

/// The URLs without the login that stands before an `@`, and that login.
fn url(read: &mut Reader<'_>) -> (String, Login) {
    let Some(text) = read.text("nats-url") else {
        read.mistake("nats-url", "is not set; for example nats://localhost:4222");
        return (String::new(), Login::Nobody);
    };
    let parts = text.split(',').map(str::trim);
    if parts.clone().any(is_ambiguous) {
        read.mistake("nats-url", AMBIGUOUS);
        return (String::new(), Login::Nobody);
    }
    let (mut urls, mut login) = (Vec::new(), Login::Nobody);
    for part in parts {
        let (url, given) = split_login(part);
        // The client is built without WebSockets.
        let parsed = url.parse::<ServerAddr>().ok().filter(|server| !server.is_websocket());
        if url.is_empty() || parsed.is_none() {
            read.mistake("nats-url", "is no NATS URL, nor several with commas between them");
            return (String::new(), Login::Nobody);
        }
        // The text before a comma in a password would be taken for a server, and shown as one.
        let is_late = login == Login::Nobody && !urls.is_empty();
        if given != Login::Nobody && given != login && (is_late || login != Login::Nobody) {
            let problem = "has more than one login, or one that is not in the first URL; a comma in a password is written %2C";
            read.mistake("nats-url", problem);
            return (String::new(), Login::Nobody);
        }
        if given != Login::Nobody {
            login = given;
        }
        urls.push(url);
    }
    (urls.join(","), login)
}

/// A lone name before the `@` is a token, as in all NATS clients.
fn split_login(text: &str) -> (String, Login) {
    let (scheme, rest) =
        text.split_once("://").map_or(("", text), |(_, rest)| (&text[..text.len() - rest.len()], rest));
    let Some((login, host)) = rest.split_once('@') else { return (text.to_owned(), Login::Nobody) };
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let login = match login.split_once(':') {
        Some((user, password)) => {
            Login::Password { user: decoded(user), password: Secret::Text(decoded(password)) }
        }
        None => Login::Token(Secret::Text(decoded(login))),
    };
    (format!("{scheme}{host}"), login)
}

fn login(read: &mut Reader<'_>, in_url: Login) -> Login {
    let mut found = Vec::new();
    if in_url != Login::Nobody {
        found.push(("nats-url", in_url));
    }
    let user = read.text("nats-user");
    let password = read.secret("nats-password");
    match (user, password) {
        (Some(user), Some(password)) => found.push(("nats-user", Login::Password { user, password })),
        (Some(_), None) if !given(read, "nats-password") => {
            read.mistake("nats-user", "needs nats-password or nats-password-file");
        }
        (None, Some(_)) => read.mistake("nats-user", "is not set, but a password is"),
        (_, None) => {}
    }
    if let Some(token) = read.secret("nats-token") {
        found.push(("nats-token", Login::Token(token)));
    }
    if let Some(seed) =
        checked(read, "nats-nkey-seed", is_seed, "is not the seed of an NKey for a user (SU...)")
    {
        found.push(("nats-nkey-seed", Login::Seed(seed)));
    }
    let no_credentials = "is no .creds file: a user's JWT and the seed of an NKey";
    if let Some(content) = checked(read, "nats-credentials", is_credentials, no_credentials) {
        found.push(("nats-credentials", Login::Credentials(content)));
    }
    if found.len() > 1 {
        let names: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
        let problem = format!(
            "NATS takes one way to log in, but {} are given; give only one of them",
            names.join(" and ")
        );
        read.mistake(names[1], problem);
    }
    found.into_iter().next().map_or(Login::Nobody, |(_, login)| login)
}

fn given(read: &Reader<'_>, name: &str) -> bool {
    read.given(name).is_some() || read.given(&format!("{name}-file")).is_some()
}

fn checked(read: &mut Reader<'_>, name: &str, is_good: fn(&str) -> bool, problem: &str) -> Option<Secret> {
    let secret = read.secret(name)?;
    if secret.read().is_ok_and(|text| is_good(&text)) {
        return Some(secret);
    }
    let in_file = format!("{name}-file");
    let given = if read.given(&in_file).is_some() { in_file.as_str() } else { name };
    read.mistake(given, problem);
    None
}

fn is_seed(text: &str) -> bool {
    text.starts_with("SU") && nkeys::KeyPair::from_seed(text).is_ok()
}

fn is_credentials(text: &str) -> bool {
    with_credentials(ConnectOptions::new(), text).is_ok()
}

/// async-nats reads only lines that end with a newline, which a secret has lost.
pub(crate) fn with_credentials(options: ConnectOptions, text: &str) -> std::io::Result<ConnectOptions> {
    options.credentials(&format!("{text}\n"))
}

fn identity(read: &mut Reader<'_>) -> Option<(PathBuf, PathBuf)> {
    for (given, missing) in [("nats-cert-file", "nats-key-file"), ("nats-key-file", "nats-cert-file")] {
        if read.given(given).is_some() && read.given(missing).is_none() {
            read.mistake(missing, format_args!("is missing, but {given} is given"));
        }
    }
    let (cert, _) = read.file("nats-cert-file", tls::certificates)?;
    let (key, _) = read.file("nats-key-file", tls::private_key)?;
    Some((cert, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_before_the_host_is_taken_out() {
        let password = |user: &str, password: &str| Login::Password {
            user: user.to_owned(),
            password: Secret::Text(password.to_owned()),
        };
        for (text, url, login) in [
            ("nats://h:4222", "nats://h:4222", Login::Nobody),
            ("tls://u:p@h", "tls://h", password("u", "p")),
            ("nats://a:p%40ss%20@h", "nats://h", password("a", "p@ss ")),
            ("nats://token@h", "nats://h", Login::Token(Secret::Text("token".to_owned()))),
            ("u:p@h:1", "h:1", password("u", "p")),
        ] {
            assert_eq!(split_login(text), (url.to_owned(), login), "{text}");
        }
    }
}
