//! The server that the kit's URL names.

use std::net::SocketAddr;

use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use tokio_postgres::{Config, config::Host};

use crate::TestKitError;

/// A URL that the kit can use.
pub(crate) fn config(url: &str) -> Result<Config, TestKitError> {
    let invalid = |problem: &str| TestKitError::Invalid(format!("the kit's URL {problem}"));
    // The driver's own error might repeat the URL, which may hold a password.
    let config: Config = url.parse().map_err(|_| invalid("is not a URL of PostgreSQL"))?;
    match (config.get_hosts(), config.get_dbname()) {
        ([Host::Tcp(_)], Some(_)) => Ok(config),
        ([Host::Tcp(_)], None) => Err(invalid("names no database")),
        _ => Err(invalid("does not name one host, reached over TCP")),
    }
}

/// The URL of a database, with the login of a configuration.
pub(crate) fn url(config: &Config, host: &str, port: u16, database: &str) -> String {
    let user = config.get_user().map(|user| encoded(user.as_bytes())).unwrap_or_default();
    let password = config.get_password().map(|word| format!(":{}", encoded(word))).unwrap_or_default();
    let at = if user.is_empty() && password.is_empty() { "" } else { "@" };
    format!("postgres://{user}{password}{at}{host}:{port}/{database}")
}

/// The address that the server listens on.
pub(crate) async fn address(config: &Config) -> Result<SocketAddr, TestKitError> {
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let name = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.as_str(),
        _ => "localhost",
    };
    let found = tokio::net::lookup_host((name, port)).await;
    let mut found = found.map_err(|error| TestKitError::Network("look up the server's name", error))?;
    found.next().ok_or_else(|| TestKitError::Invalid("the server's name has no address".to_owned()))
}

fn encoded(bytes: &[u8]) -> String {
    percent_encode(bytes, NON_ALPHANUMERIC).to_string()
}
