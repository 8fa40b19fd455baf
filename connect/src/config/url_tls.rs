//! The TLS parameters of a URL, and the password that a file has now.

use percent_encoding::percent_decode_str;
use tokio_postgres::Config;

use super::sources::Secret;

/// The TLS parameters that a URL may carry.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct UrlTls {
    pub(super) mode: Option<String>,
    pub(super) root: Option<String>,
    pub(super) cert: Option<String>,
    pub(super) key: Option<String>,
}

/// Takes the TLS parameters out of a URL; the rest is for tokio-postgres, which does not know them
/// all. A connection string is left as it is.
pub(super) fn take_tls(text: &str) -> (String, UrlTls) {
    let mut tls = UrlTls::default();
    if !text.contains("://") {
        return (text.to_owned(), tls);
    }
    let Some((front, parameters)) = text.split_once('?') else { return (text.to_owned(), tls) };
    let mut kept = Vec::new();
    for pair in parameters.split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let target = match name {
            "sslmode" => &mut tls.mode,
            "sslrootcert" => &mut tls.root,
            "sslcert" => &mut tls.cert,
            "sslkey" => &mut tls.key,
            _ => {
                kept.push(pair);
                continue;
            }
        };
        *target = Some(percent_decode_str(value).decode_utf8_lossy().into_owned());
    }
    let rest = if kept.is_empty() { front.to_owned() } else { format!("{front}?{}", kept.join("&")) };
    (rest, tls)
}

/// A file that has the password for PostgreSQL.
#[derive(Clone)]
pub(super) enum PasswordFile {
    Password(Secret),
    Url(Secret),
}

impl PasswordFile {
    /// The password; `None` for a URL without one.
    ///
    /// # Errors
    /// The file cannot be read, or holds no URL any more; without its content.
    pub(super) fn read(&self) -> Result<Option<Vec<u8>>, String> {
        match self {
            Self::Password(file) => file.read().map(|password| Some(password.into_bytes())),
            Self::Url(file) => {
                let (url, _) = take_tls(&file.read()?);
                // A parse error could quote the URL, password and all.
                let config =
                    url.parse::<Config>().map_err(|_| "the file holds no URL any more".to_owned())?;
                Ok(config.get_password().map(<[u8]>::to_vec))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, rest: &str, found: [Option<&str>; 4]) {
        let [mode, root, cert, key] = found.map(|part| part.map(str::to_owned));
        assert_eq!(take_tls(text), (rest.to_owned(), UrlTls { mode, root, cert, key }), "{text}");
    }

    #[test]
    fn tls_parameters_are_taken_out_of_a_url() {
        check("postgres://h/d", "postgres://h/d", [None; 4]);
        check(
            "postgres://h/d?sslmode=verify-full",
            "postgres://h/d",
            [Some("verify-full"), None, None, None],
        );
        check(
            "postgres://u:p%3Fw@h,i/d?application_name=a&sslrootcert=%2Fca%20x&sslcert=c&sslkey=k&options=-c%20x",
            "postgres://u:p%3Fw@h,i/d?application_name=a&options=-c%20x",
            [None, Some("/ca x"), Some("c"), Some("k")],
        );
        check("host=h sslmode=require", "host=h sslmode=require", [None; 4]);
    }
}
