//! The stylesheet and the script, in the program itself. Their addresses hold a hash of them, so a
//! browser keeps them for good, and a new program's are new.

use std::sync::LazyLock;

use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use sha2::{Digest as _, Sha256};

/// A file that browsers fetch.
pub(crate) struct Asset {
    pub(crate) path: String,
    kind: &'static str,
    text: &'static str,
}

impl Asset {
    fn new(name: &str, kind: &'static str, text: &'static str) -> Self {
        let hash: String = Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Self { path: format!("/assets/{hash}/{name}"), kind, text }
    }
}

pub(crate) static STYLE: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("console.css", "text/css; charset=utf-8", include_str!("../assets/console.css"))
});
pub(crate) static SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("console.js", "text/javascript; charset=utf-8", include_str!("../assets/console.js"))
});
pub(crate) static ICON: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("icon.svg", "image/svg+xml", include_str!("../assets/icon.svg")));

/// The asset at a path.
pub(crate) fn serve(path: &str) -> Response {
    let all = [&*STYLE, &*SCRIPT, &*ICON];
    let Some(asset) = all.into_iter().find(|asset| asset.path == path) else {
        return (StatusCode::NOT_FOUND, "there is no such file\n").into_response();
    };
    let headers =
        [(header::CONTENT_TYPE, asset.kind), (header::CACHE_CONTROL, "public, max-age=31536000, immutable")];
    (headers, asset.text).into_response()
}
