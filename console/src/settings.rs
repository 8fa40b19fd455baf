//! The settings of a console.

use std::net::{IpAddr, SocketAddr};

use oncebox_connect::config::{Config, OutboxConfig};

use crate::access::tokens::Token;

/// A database that a console shows.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a caller fills it in")]
pub struct Member {
    /// Its name, in addresses as well.
    pub name: String,
    /// Where its outbox is.
    pub outbox: OutboxConfig,
    /// The whole configuration, where NATS is configured.
    pub config: Option<Config>,
}

/// The settings of a console.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a caller fills it in")]
pub struct Settings {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Names under which it is reached, beside `localhost` and addresses.
    pub hosts: Vec<String>,
    /// Whether operators may change something.
    pub allows_actions: bool,
    /// Whether payloads are shown.
    pub shows_payloads: bool,
    /// Who acts, for the audit, where users do not sign in.
    pub by: String,
    /// The tokens of people who may sign in; none means that they need not.
    pub tokens: Vec<Token>,
    /// A proxy in front of it that has signed people in.
    pub proxy: Option<Proxy>,
}

/// A proxy that names in a header who asks.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a caller fills it in")]
pub struct Proxy {
    /// The header.
    pub header: String,
    /// The proxy's addresses; the header of others is not believed.
    pub addresses: Vec<IpAddr>,
    /// The people who may act; the others read.
    pub operators: Vec<String>,
}

impl Settings {
    /// Whether people sign in.
    #[must_use]
    pub fn has_sign_in(&self) -> bool {
        !self.tokens.is_empty() || self.proxy.is_some()
    }

    /// Checks that the settings are safe together.
    ///
    /// # Errors
    /// All mistakes at once.
    pub fn check(&self) -> Result<(), Vec<String>> {
        let mut mistakes = Vec::new();
        if !self.listen.ip().is_loopback() && !self.has_sign_in() {
            mistakes.push(format!(
                "--listen {} can be reached from other machines, and nobody signs in: give --token-file, or \
                 --trusted-header with --trusted-proxy, or listen on 127.0.0.1",
                self.listen
            ));
        }
        let is_name = |name: &str| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c))
        };
        for host in self.hosts.iter().filter(|host| !is_name(host)) {
            mistakes.push(format!(
                "--host {host} is not a bare name such as console.example.com, without port or *"
            ));
        }
        if let Some(proxy) = &self.proxy
            && proxy.addresses.is_empty()
        {
            mistakes.push(format!(
                "--trusted-header {} needs --trusted-proxy: else everybody could send that header",
                proxy.header
            ));
        }
        if mistakes.is_empty() { Ok(()) } else { Err(mistakes) }
    }
}
