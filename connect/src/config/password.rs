//! The password for PostgreSQL, as its file has it now.

use tokio_postgres::Config;

use super::{sources::Secret, url_tls::take_tls};

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
