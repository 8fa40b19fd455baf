//! The program of the version before, for tests of rolling deploys.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

/// What `make previous` has built of the commit in `tests/previous-version.txt`. `None` without it,
/// which is said.
///
/// # Errors
/// It is missing although `ONCEBOX_TEST_PREVIOUS=required`, as in `make test`; the error says what
/// to do.
pub fn previous_program() -> Result<Option<PathBuf>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let commit =
        fs::read_to_string(root.join("previous-version.txt")).context("read previous-version.txt")?;
    let program = root.join("../.dev/previous").join(commit.trim()).join("debug/oncebox");
    if program.is_file() {
        return Ok(Some(program));
    }
    if env::var_os("ONCEBOX_TEST_PREVIOUS").is_some_and(|value| value == "required") {
        bail!("{} is missing: run `make previous`", program.display());
    }
    eprintln!("left out: the program of the version before is not built; run `make previous`");
    Ok(None)
}
