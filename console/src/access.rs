//! Who may do which thing: tokens, sessions, and the checks before each request.

pub(crate) mod guard;
pub(crate) mod sessions;
pub(crate) mod tokens;
