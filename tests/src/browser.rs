//! A browser of a test's own.

use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use fantoccini::{Client, ClientBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    guardian::Guardian,
    postgres::{free_port, tail},
};

/// Set to `required`, a test that finds no browser fails; else it is left out.
const VARIABLE: &str = "ONCEBOX_TEST_BROWSER";
const DEADLINE: Duration = Duration::from_secs(60);
const PORT_ATTEMPTS: u32 = 5;
/// It asks no server on the network, and needs no sandbox: it shows pages of our own.
const ARGUMENTS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];

/// A headless Chromium, driven through its driver.
///
/// Both end when this value is dropped, and when this process dies by any means.
#[derive(Debug)]
pub struct Browser {
    guardian: Guardian,
    port: u16,
    page: Client,
}

/// The programs `chromium` and `chromedriver`.
///
/// # Errors
/// They are not there; the error names the remedy.
pub fn browser_programs() -> Result<(PathBuf, PathBuf)> {
    let path = env::var_os("PATH").unwrap_or_default();
    let find =
        |name: &str| env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
    let both = find("chromium").zip(find("chromedriver"));
    both.context("there is no chromium with chromedriver on PATH (Debian: chromium, chromium-driver)")
}

impl Browser {
    /// Starts one; `None` when there is none on this machine, which is said.
    ///
    /// # Errors
    /// It does not start; the error has the end of its log.
    pub async fn start() -> Result<Option<Self>> {
        let (chromium, driver) = match browser_programs() {
            Ok(programs) => programs,
            Err(error) => {
                let is_required = env::var_os(VARIABLE).is_some_and(|word| word == "required");
                ensure!(!is_required, "{VARIABLE}=required, but {error}");
                eprintln!("LEFT OUT: {error}");
                return Ok(None);
            }
        };
        for _ in 0..PORT_ATTEMPTS {
            let port = free_port()?;
            let mut guardian = Guardian::new("chromedriver", "TERM", None, |_| {
                vec![driver.clone().into_os_string(), format!("--port={port}").into()]
            })?;
            guardian.start().await?;
            let begun = Instant::now();
            while begun.elapsed() < DEADLINE && !guardian.has_ended() {
                let profile = guardian.directory().join("profile");
                if let Ok(page) = open(port, &chromium, &profile).await {
                    return Ok(Some(Self { guardian, port, page }));
                }
                sleep(Duration::from_millis(100)).await;
            }
            let log = guardian.log();
            ensure!(log.contains("Address already in use"), "chromedriver opens no page: {}", tail(&log));
        }
        bail!("chromedriver found no free port in {PORT_ATTEMPTS} attempts")
    }

    /// Where its profiles are, which its processes name on their command lines.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.guardian.directory()
    }

    /// Its page.
    #[must_use]
    pub fn page(&self) -> &Client {
        &self.page
    }

    /// A page of another browser, with cookies of its own.
    ///
    /// # Errors
    /// It does not open.
    pub async fn other(&self, name: &str) -> Result<Client> {
        let (chromium, _) = browser_programs()?;
        open(self.port, &chromium, &self.guardian.directory().join(name)).await
    }
}

async fn open(port: u16, chromium: &Path, profile: &Path) -> Result<Client> {
    let mut arguments: Vec<String> = ARGUMENTS.map(str::to_owned).to_vec();
    arguments.push(format!("--user-data-dir={}", profile.display()));
    let options = json!({ "binary": chromium, "args": arguments });
    let capabilities = json!({ "goog:chromeOptions": options });
    let Value::Object(capabilities) = capabilities else { bail!("capabilities are an object") };
    let mut builder = ClientBuilder::new(HttpConnector::new());
    Ok(builder.capabilities(capabilities).connect(&format!("http://127.0.0.1:{port}")).await?)
}
