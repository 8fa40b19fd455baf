//! The PostgreSQL part of the configuration: URL, TLS, password.

use std::path::Path;

use tokio_postgres::{
    Config,
    config::{Host, SslMode, TargetSessionAttrs},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{
    address::{AMBIGUOUS, is_ambiguous, problem_of},
    bound_sockets, is_here,
    reader::Reader,
    sources::Secret,
    tls::{self, Identity, Trust},
    url_tls::{PasswordFile, UrlTls, take_tls},
};

/// How many addresses one database may have; with more, a pass would be over its deadline before
/// the last one was tried.
pub const HOSTS_MAX: usize = 6;

/// The bytes of an `application_name` that PostgreSQL keeps.
const NAME_MAX: usize = 63;

/// The end of an operator's `application_name`.
const OPERATOR: &str = " operator";

/// One database, at one or several addresses. Shown without any secret.
#[derive(Clone)]
pub struct Database {
    /// Hosts, user, database and session settings.
    pub postgres: Config,
    /// TLS as configured.
    pub tls: MakeRustlsConnect,
    /// The file with the password, or with the URL, which is read for each connection: it may be
    /// replaced under a running relay.
    password: Option<PasswordFile>,
}

impl Database {
    /// Of several hosts, only one that takes writes will do: the rest are standbys.
    fn new(mut postgres: Config, tls: MakeRustlsConnect, password: Option<PasswordFile>) -> Self {
        if postgres.get_hosts().len() > 1 {
            postgres.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        Self { postgres, tls, password }
    }

    /// One of its hosts, with the password of now. While the file cannot be read, as in the moment
    /// of a rotation, the last password holds that the program started with.
    pub(crate) fn with_password(&self, host: &Config) -> Config {
        let mut host = host.clone();
        match self.password.as_ref().map(PasswordFile::read) {
            Some(Ok(Some(password))) => drop(host.password(password)),
            Some(Err(problem)) => tracing::debug!(problem, "read the password for PostgreSQL"),
            Some(Ok(None)) | None => {}
        }
        host
    }

    /// The settings for an operator's command: its sessions have another name than a relay's.
    pub fn of_operator(&self) -> Self {
        let mut postgres = self.postgres.clone();
        let name = match postgres.get_application_name() {
            None | Some("oncebox relay") => "oncebox operator".to_owned(),
            Some(name) => operator_name(name),
        };
        postgres.application_name(name);
        Self::new(postgres, self.tls.clone(), self.password.clone())
    }

    /// The settings for a program that leads sagas: it is no relay, for those who count these.
    #[must_use]
    pub fn of_saga(&self) -> Self {
        let mut postgres = self.postgres.clone();
        if let None | Some("oncebox relay") = postgres.get_application_name() {
            postgres.application_name("oncebox saga");
        }
        Self::new(postgres, self.tls.clone(), self.password.clone())
    }

    /// Hosts and database, with no secret, for errors and logs.
    pub fn target(&self) -> String {
        target(&self.postgres)
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.target())
    }
}

/// The `application_name` of an operator, so short that PostgreSQL keeps all of it. Since version
/// 16 it shows each byte that is not printable ASCII with four, as `\xc3`.
fn operator_name(relay: &str) -> String {
    let mut room = NAME_MAX - OPERATOR.len();
    let fits = |letter: &char| {
        let shown = if matches!(letter, ' '..='~') { 1 } else { 4 * letter.len_utf8() };
        let rest = room.checked_sub(shown);
        room = rest.unwrap_or(0);
        rest.is_some()
    };
    relay.chars().take_while(fits).chain(OPERATOR.chars()).collect()
}

/// The port of one of the hosts.
pub fn port(config: &Config, number: usize) -> u16 {
    let ports = config.get_ports();
    ports.get(number).or(ports.first()).copied().unwrap_or(5432)
}

/// Hosts and database, with no secret.
pub fn target(config: &Config) -> String {
    let hosts = config.get_hosts().iter().enumerate().map(|(number, host)| {
        let port = port(config, number);
        match host {
            Host::Tcp(name) => format!("{name}:{port}"),
            Host::Unix(path) => format!("{}:{port}", path.display()),
        }
    });
    let hosts: Vec<String> = hosts.collect();
    format!("{}/{}", hosts.join(","), config.get_dbname().or(config.get_user()).unwrap_or_default())
}

/// `sslmode`, with the modes that tokio-postgres does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Absent,
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// Checks all that concerns PostgreSQL; after a mistake the result must not be used.
pub(super) fn database(read: &mut Reader<'_>) -> Database {
    let (mut config, url_tls) = url(read);
    let url_file = read.text("database-url-file").map(|path| Secret::File(path.into()));
    let file = read.secret_file("database-password-file");
    if let Some(secret) = file.as_ref().and_then(|secret| secret.read().ok()) {
        if config.get_password().is_some() {
            read.mistake(
                "database-password-file",
                "is given, but database-url has a password too; give only one of them",
            );
        }
        config.password(secret);
    }
    check_hosts(read, &config);
    let says_nothing = url_tls.mode.is_none();
    let tls = tls(read, &mut config, url_tls);
    if says_nothing && config.get_ssl_mode() == SslMode::Disable {
        warn_of_plaintext(read, &config);
    }
    let password = file.map(PasswordFile::Password).or(url_file.map(PasswordFile::Url));
    Database::new(config, MakeRustlsConnect::new(tls), password)
}

fn url(read: &mut Reader<'_>) -> (Config, UrlTls) {
    let Some(text) = text_of_url(read) else { return (Config::new(), UrlTls::default()) };
    if ["postgres://", "postgresql://"].iter().any(|scheme| text.starts_with(scheme)) && is_ambiguous(&text) {
        read.mistake("database-url", AMBIGUOUS);
        return (Config::new(), UrlTls::default());
    }
    let (rest, mut url_tls) = take_tls(&text);
    // A parse error could quote the URL, password and all; so it is not shown.
    let mut config = match rest.parse::<Config>() {
        Ok(config) => config,
        Err(_) => {
            let hint = if text.contains("ssl") && !text.contains("://") {
                "; verify-ca, verify-full and the names of files need a URL (postgres://...) or --database-ca-file"
            } else {
                ""
            };
            read.mistake("database-url", problem_of(&rest) + hint);
            return (Config::new(), UrlTls::default());
        }
    };
    if !text.contains("://") && text.contains("sslmode") {
        url_tls.mode = match config.get_ssl_mode() {
            SslMode::Disable => Some("disable".to_owned()),
            SslMode::Prefer => Some("prefer".to_owned()),
            _ => Some("require".to_owned()),
        };
    }
    if config.get_hosts().is_empty() {
        read.mistake("database-url", "names no host");
    }
    if config.get_application_name().is_none() {
        config.application_name("oncebox relay");
    }
    bound_sockets(&mut config);
    (config, url_tls)
}

/// The URL, given by itself or in a file.
fn text_of_url(read: &mut Reader<'_>) -> Option<String> {
    let in_file = read.given("database-url-file").is_some();
    match read.text("database-url") {
        Some(_) if in_file => {
            let other = read.sources.place("database-url");
            read.mistake(
                "database-url-file",
                format_args!("is given as well as {other}; give only one of them"),
            );
            None
        }
        None if in_file => read.secret_file("database-url-file")?.read().ok(),
        None => {
            read.mistake("database-url", "is not set; for example postgres://oncebox@localhost/orders");
            None
        }
        url => url,
    }
}

/// Warns of a way to another host without TLS, unless `sslmode=disable` says that it needs none.
fn warn_of_plaintext(read: &mut Reader<'_>, config: &Config) {
    let addresses = config.get_hostaddrs();
    let remote = config.get_hosts().iter().enumerate().find_map(|(number, host)| {
        match (host, addresses.get(number)) {
            (Host::Unix(_), _) => None,
            (Host::Tcp(name), Some(address)) => (!address.is_loopback()).then_some(name),
            (Host::Tcp(name), None) => (!is_here(name)).then_some(name),
        }
    });
    if let Some(host) = remote {
        read.weakness(
            "database-url",
            format_args!(
                "has no sslmode, so password and messages cross the network to {host} in plain text: add sslmode=verify-full, or sslmode=disable where the network itself is safe"
            ),
        );
    }
}

fn check_hosts(read: &mut Reader<'_>, config: &Config) {
    let hosts = config.get_hosts().len();
    if hosts > HOSTS_MAX {
        read.mistake("database-url", format_args!("names {hosts} hosts; {HOSTS_MAX} at most"));
    }
    let (ports, addresses) = (config.get_ports().len(), config.get_hostaddrs().len());
    if hosts > 0 && ((ports > 1 && ports != hosts) || (addresses > 0 && addresses != hosts)) {
        read.mistake("database-url", "names as many ports, or addresses, as hosts, or one port for all");
    }
    if config.get_target_session_attrs() == TargetSessionAttrs::ReadOnly {
        read.mistake("database-url", "asks for a read-only server, but a relay writes");
    }
}

/// The trust of rustls; sets whether tokio-postgres asks for TLS at all.
fn tls(read: &mut Reader<'_>, config: &mut Config, url: UrlTls) -> rustls::ClientConfig {
    let mode = mode(read, url.mode.as_deref());
    let system = url.root.as_deref() == Some("system");
    let ca = pick(read, "database-ca-file", url.root.filter(|_| !system).as_deref(), tls::certificates);
    let identity = identity(read, url.cert.as_deref(), url.key.as_deref());
    let files = ca.is_some() || system || identity.is_some();
    match mode {
        Mode::Disable if files => {
            read.mistake("database-url", "says sslmode=disable, but files for TLS are given");
        }
        Mode::Prefer if files => {
            let problem =
                "says sslmode=prefer, which may end without TLS, but files for TLS are given; leave it out";
            read.mistake("database-url", problem);
        }
        Mode::VerifyCa if ca.is_none() => {
            read.mistake("database-url", "says sslmode=verify-ca, which needs the option database-ca-file");
        }
        Mode::Absent | Mode::Disable | Mode::Prefer | Mode::Require | Mode::VerifyCa | Mode::VerifyFull => {}
    }
    config.ssl_mode(match mode {
        Mode::Absent if !files => SslMode::Disable,
        Mode::Disable => SslMode::Disable,
        Mode::Prefer => SslMode::Prefer,
        Mode::Absent | Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
    });
    let is_unix = |host: &Host| matches!(host, Host::Unix(_));
    if config.get_ssl_mode() == SslMode::Require && config.get_hosts().iter().any(is_unix) {
        read.mistake("database-url", "names a Unix socket, which has no TLS, but TLS is asked for");
    }
    let trust = match (mode, ca) {
        (Mode::Disable | Mode::Prefer, _) | (Mode::Require, None) if !system => Trust::Anyone,
        (Mode::Absent, None) if !files => Trust::Anyone,
        (Mode::VerifyCa, Some(ca)) => Trust::SignedBy(ca),
        // A mistake already.
        (Mode::VerifyCa, None) => Trust::Anyone,
        (_, Some(ca)) => Trust::Host(ca),
        (_, None) => Trust::HostBySystem,
    };
    let name = if identity.is_some() { "database-cert-file" } else { "database-ca-file" };
    tls::client_config(trust, identity).unwrap_or_else(|problem| {
        read.mistake(name, problem);
        tls::client_config(Trust::Anyone, None).expect("needs nothing that could be wrong")
    })
}

fn mode(read: &mut Reader<'_>, text: Option<&str>) -> Mode {
    match text {
        None => Mode::Absent,
        Some("disable") => Mode::Disable,
        Some("prefer") => Mode::Prefer,
        Some("require") => Mode::Require,
        Some("verify-ca") => Mode::VerifyCa,
        Some("verify-full") => Mode::VerifyFull,
        Some(_) => {
            let problem =
                "has an sslmode that is not one of disable, prefer, require, verify-ca and verify-full";
            read.mistake("database-url", problem);
            Mode::VerifyFull
        }
    }
}

/// The content of the file that the option names, or else the URL's parameter.
fn pick<T>(
    read: &mut Reader<'_>,
    name: &str,
    in_url: Option<&str>,
    load: impl Fn(&Path) -> Result<T, String>,
) -> Option<T> {
    let Some(path) = in_url else { return read.file(name, load).map(|(_, content)| content) };
    if read.given(name).is_some() {
        read.mistake(name, "is given, but database-url names such a file too; give only one of them");
    }
    load(Path::new(path)).map_err(|problem| read.mistake("database-url", problem)).ok()
}

fn identity(read: &mut Reader<'_>, url_cert: Option<&str>, url_key: Option<&str>) -> Option<Identity> {
    let has_cert = url_cert.is_some() || read.given("database-cert-file").is_some();
    let has_key = url_key.is_some() || read.given("database-key-file").is_some();
    if has_cert != has_key {
        let (given, missing) = if has_cert { ("cert", "key") } else { ("key", "cert") };
        read.mistake(
            &format!("database-{missing}-file"),
            format_args!("is missing, but database-{given}-file is given"),
        );
    }
    let chain = pick(read, "database-cert-file", url_cert, tls::certificates);
    let key = pick(read, "database-key-file", url_key, tls::private_key);
    chain.zip(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_operator_is_kept_whole() {
        for (relay, expected) in [
            ("orders", "orders operator".to_owned()),
            ("", " operator".to_owned()),
            (&"o".repeat(54), "o".repeat(54) + OPERATOR),
            (&"o".repeat(55), "o".repeat(54) + OPERATOR),
            (&"\u{e9}".repeat(60), "\u{e9}".repeat(6) + OPERATOR),
            (&("o".repeat(50) + "\u{e9}rders"), "o".repeat(50) + OPERATOR),
        ] {
            assert_eq!(operator_name(relay), expected, "{relay}");
        }
    }
}
