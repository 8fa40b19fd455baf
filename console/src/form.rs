//! The bodies of requests.

use axum::{body::to_bytes, extract::Request};

use crate::{fields::Fields, problem::Problem};

/// Selectors, a note, a token; the largest is the payload of an edit, each byte of it up to three.
pub(crate) const BYTES_MAX: usize = 1024 * 1024;
/// Of a form that every visitor may send: a token, and the page to go to.
pub(crate) const SIGN_IN_BYTES_MAX: usize = 16 * 1024;

/// The body as text.
pub(crate) async fn text(request: Request, bytes_max: usize) -> Result<String, Problem> {
    let body = to_bytes(request.into_body(), bytes_max).await;
    let body = body.map_err(|_| Problem::Bad(format!("the body has more than {bytes_max} bytes")))?;
    String::from_utf8(body.into()).map_err(|_| Problem::Bad("the body is not UTF-8".to_owned()))
}

/// The fields of a form.
pub(crate) async fn fields(request: Request, bytes_max: usize) -> Result<Fields, Problem> {
    Ok(Fields::parse(&text(request, bytes_max).await?))
}
