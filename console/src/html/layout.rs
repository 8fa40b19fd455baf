//! The frame of every page: head, places to go, and who is signed in.

use maud::{DOCTYPE, Markup, html};

use super::assets::{ICON, SCRIPT, STYLE};
use crate::{ask::Ask, fields::Fields};

/// The places that a database has, each with its title.
const PLACES: [(&str, &str); 11] = [
    ("", "Overview"),
    ("/history", "History"),
    ("/set-aside", "Set aside"),
    ("/sagas", "Sagas"),
    ("/delayed", "Delayed"),
    ("/pauses", "Pauses"),
    ("/replays", "Replays"),
    ("/losses", "Losses"),
    ("/proof", "Proof"),
    ("/doctor", "Doctor"),
    ("/audit", "Audit"),
];

/// The whole page.
pub(crate) fn page(ask: &Ask, title: &str, body: &Markup) -> Markup {
    let database = ask.database().ok().map(|database| database.name());
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(title))
            body data-events="/events" {
                a.skip href="#main" { "Skip to the content" }
                header.top {
                    a.brand href="/" { "Oncebox" }
                    form.find action="/find" method="get" role="search" {
                        label.hidden for="q" { "Find a key, ordering key, saga, subject or trace" }
                        input #q name="q" type="search" placeholder="Find a key, saga, subject, trace  ( / )"
                            autocomplete="off" spellcheck="false" value=(ask.query.get("q").unwrap_or_default());
                    }
                    nav aria-label="Console" {
                        (place(ask, "/", "Databases"))
                        (place(ask, "/jobs", "Jobs"))
                        (place(ask, "/settings", "Settings"))
                    }
                    div.who { (who(ask)) }
                }
                @if let Some(name) = database {
                    nav.places aria-label=(format!("Database {name}")) {
                        strong { (name) }
                        @for (tail, title) in PLACES { (place(ask, &format!("/db/{name}{tail}"), title)) }
                    }
                }
                main #main tabindex="-1" {
                    h1 { (title) }
                    (body)
                }
                footer {
                    span #live.quiet { "Not live: " a href=(ask.path) { "load again" } }
                    span.quiet { "Keys: / find, g d databases, g j jobs, g s settings" }
                }
            }
        }
    }
}

fn head(title: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { (title) " · Oncebox" }
            link rel="stylesheet" href=(STYLE.path);
            link rel="icon" href=(ICON.path) type="image/svg+xml";
            script src=(SCRIPT.path) defer {}
        }
    }
}

fn place(ask: &Ask, path: &str, title: &str) -> Markup {
    let here = ask.path.split('?').next() == Some(path);
    html! { a href=(path) aria-current=[here.then_some("page")] { (title) } }
}

fn who(ask: &Ask) -> Markup {
    let has_session = !ask.console.settings.tokens.is_empty();
    html! {
        button.theme #theme type="button" hidden aria-label="Change between light and dark" { "◐" }
        span.name { (ask.user.name) @if !ask.may_act() { span.quiet { " reads" } } }
        @if has_session {
            form action="/sign-out" method="post" { (token(ask)) button { "Sign out" } }
        }
    }
}

/// Proves that a form was on a page of this console.
pub(crate) fn token(ask: &Ask) -> Markup {
    html! { input type="hidden" name="token" value=(ask.form_token()); }
}

/// The form with which people sign in.
pub(crate) fn sign_in(next: &str, problem: Option<&str>) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            (head("Sign in"))
            body.alone {
                main #main {
                    h1 { "Sign in" }
                    @if let Some(problem) = problem { p.problem role="alert" { (problem) } }
                    form.stack action="/sign-in" method="post" {
                        input type="hidden" name="next" value=(next);
                        label for="secret" { "Your token" }
                        input #secret name="secret" type="password" autocomplete="current-password" required autofocus;
                        button.main { "Sign in" }
                    }
                    p.quiet { "The tokens stand in the file that " code { "oncebox console --token-file" } " names." }
                }
            }
        }
    }
}

/// A link to a key's page.
pub(crate) fn key_link(key: &str) -> Markup {
    html! { a.key href=(Fields::link("/key", &[("key", key)])) { (key) } }
}
