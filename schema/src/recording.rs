//! Recordings: a process writes a line of JSON for each step of its work, and the checker in
//! `model/` replays them.
//!
//! A line is written before its step is made, and waited for: a killed process leaves no commit
//! that the recording does not know. Lines are numbered, and the next one after those that could
//! not be written shows the gap, so the checker refuses the recording.

use std::{
    fs::{File, OpenOptions},
    hash::{BuildHasher as _, Hasher as _, RandomState},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::Value;
use tracing::warn;

/// The variable that has every inbox and orchestrator of a process write a recording.
const VARIABLE: &str = "ONCEBOX_TRACE_FILE";

/// A file that takes lines. Clones write into the same one, and so may other processes.
#[derive(Clone, Debug)]
pub struct Recording(Arc<Recorder>);

#[derive(Debug)]
struct Recorder {
    /// This life of a writer: a file may have several.
    run: String,
    lines: Mutex<Lines>,
}

#[derive(Debug)]
struct Lines {
    file: File,
    number: u64,
    is_failing: bool,
}

impl Recording {
    /// Opens the file at its end, after the lives that it has already, and writes the first line.
    ///
    /// # Errors
    /// The file cannot be opened, or takes nothing.
    pub fn open(path: &Path, started: Value) -> io::Result<Self> {
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        // A killed process may have left half a line.
        file.write_all(b"\n")?;
        let run = format!("{:016x}", RandomState::new().build_hasher().finish());
        let lines = Mutex::new(Lines { file, number: 0, is_failing: false });
        let recording = Self(Arc::new(Recorder { run, lines }));
        recording.write("started", started);
        Ok(recording)
    }

    /// Opens the file that is set, else the one that the environment names (`ONCEBOX_TRACE_FILE`),
    /// if one does.
    ///
    /// # Errors
    /// As [`Recording::open`], with the name of the file.
    pub fn if_wanted(set: Option<PathBuf>, started: Value) -> Result<Option<Self>, String> {
        let named = || std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let Some(path) = set.or_else(named) else { return Ok(None) };
        let opened = Self::open(&path, started);
        opened.map(Some).map_err(|error| format!("trace file {}: {error}", path.display()))
    }

    /// Writes a step, with a JSON object that tells more of it.
    pub fn write(&self, step: &str, mut line: Value) {
        let mut lines = self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.number += 1;
        line["run"] = self.0.run.as_str().into();
        line["line"] = lines.number.into();
        line["step"] = step.into();
        let written = lines.file.write_all(format!("{line}\n").as_bytes());
        if let Err(error) = &written
            && !lines.is_failing
        {
            warn!(%error, "the trace file takes no more: the checker will refuse it");
        }
        lines.is_failing = written.is_err();
    }
}
