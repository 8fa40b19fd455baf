//! The account that runs PostgreSQL, and the directories that it can read.
//!
//! PostgreSQL refuses to run as root. When the tests run as root (containers, CI) the server runs
//! as `nobody`, who must be able to read the binaries and own the data.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// A user and a group by number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Account {
    pub(crate) user: u32,
    pub(crate) group: u32,
}

impl Account {
    /// `nobody` when this process is root; otherwise `None`: the servers run as this process does.
    pub(crate) fn for_servers() -> Option<Self> {
        is_root().then(|| {
            let accounts = fs::read_to_string("/etc/passwd").unwrap_or_default();
            nobody(&accounts).unwrap_or(Self { user: 65534, group: 65534 })
        })
    }
}

/// Whether this process is root.
#[must_use]
pub fn is_root() -> bool {
    // A new file belongs to the effective user. There is no other way to find this user in safe
    // Rust.
    tempfile::tempfile().and_then(|file| file.metadata()).is_ok_and(|metadata| metadata.uid() == 0)
}

/// Creates a directory that the servers' account can reach, and returns its whole path; `None` when
/// it cannot, as below `/root`.
///
/// # Errors
/// It cannot be created.
pub fn public_directory(path: &Path) -> std::io::Result<Option<PathBuf>> {
    fs::create_dir_all(path)?;
    let path = path.canonicalize()?;
    Ok((!is_root() || is_public(&path)).then_some(path))
}

/// Whether any user may pass through every directory down to `path` and read it.
pub(crate) fn is_public(path: &Path) -> bool {
    path.canonicalize().is_ok_and(|path| {
        path.ancestors().all(|step| {
            fs::metadata(step).is_ok_and(|metadata| metadata.permissions().mode() & 0o005 == 0o005)
        })
    })
}

fn nobody(accounts: &str) -> Option<Account> {
    let fields: Vec<&str> = accounts.lines().find(|line| line.starts_with("nobody:"))?.split(':').collect();
    Some(Account { user: fields.get(2)?.parse().ok()?, group: fields.get(3)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_found_by_name() {
        let found = nobody("root:x:0:0::/:/bin/sh\nnobody:x:99:98:n:/:/bin/false\n").unwrap();
        assert_eq!((found.user, found.group), (99, 98));
        assert!(nobody("nobody2:x:1:1").is_none());
    }
}
