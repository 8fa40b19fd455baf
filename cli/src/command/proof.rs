//! `oncebox proof`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use oncebox_connect::{config::ConfigError, words::counted};
use oncebox_operator::{Moment, Proof, ProofOf};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use rustls::pki_types::{PrivatePkcs8KeyDer, pem::PemObject as _};
use serde_json::json;
use tracing::error;

use super::{On, Run, action, output};
use crate::BAD_CONFIGURATION;

/// The type of the signed payload.
const TYPE: &str = "application/vnd.oncebox.proof+json";

/// Prove that what was enqueued in a time is in its streams, and was handled; changes nothing
#[derive(clap::Args)]
#[command(
    long_about = "Prove that what was enqueued in a time is in its streams, and was handled by the inboxes of this database: \
    counts by subject, stream and inbox, and the keys of each gap. What it cannot prove it says. It reads the log \
    once, and each stream from that time on. Exit codes: 0 there is no gap; 1 there is one, or it failed; 64 an \
    argument is wrong; 69 a server cannot be reached."
)]
pub(crate) struct Prove {
    #[arg(long, value_name = "TIME", help = action::with_forms("Messages enqueued then or later"))]
    since: Moment,
    #[arg(long, value_name = "TIME", help = action::with_forms("Messages enqueued before [default: now]"))]
    until: Option<Moment>,
    /// Keys that each gap names, at most
    #[arg(long, value_name = "N", default_value = "20", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    keys: u32,
    /// Print the document signed with this Ed25519 key (PKCS#8, PEM), in an envelope of DSSE;
    /// implies --json
    #[arg(long, value_name = "FILE")]
    sign: Option<PathBuf>,
    #[arg(skip)]
    key: Option<Ed25519KeyPair>,
    /// Print JSON, a document per line
    #[arg(long)]
    json: bool,
}

impl Prove {
    /// Reads the key, before the log is read for minutes.
    pub(super) fn with_key(self) -> Result<Self, ConfigError> {
        let key = self.sign.as_deref().map(signing_key).transpose();
        let key = key.map_err(|problem| ConfigError(vec![format!("--sign: {problem:#}")]))?;
        Ok(Self { key, ..self })
    }
}

impl Run for Prove {
    async fn run(self, on: &On) -> anyhow::Result<u8> {
        let mut operator = on.operator().await?;
        let now = operator.now().await?;
        let until = self.until.map_or(now, |until| until.at(now)).min(now);
        let of = ProofOf { since: self.since.at(now), until, keys_max: self.keys as usize };
        if of.since >= of.until {
            error!("--since is not before --until, or not before now; nothing was looked at");
            return Ok(BAD_CONFIGURATION);
        }
        let proof = operator.prove(on.config.as_deref(), of).await?;
        output::print(&match &self.key {
            Some(key) => signed(key, &serde_json::to_vec(&proof)?)?,
            None if self.json => output::json_lines(&[&proof])?,
            None => text(&proof),
        })?;
        Ok(u8::from(!proof.is_whole))
    }
}

fn signing_key(path: &Path) -> anyhow::Result<Ed25519KeyPair> {
    let what = || format!("the key in {}", path.display());
    let key =
        PrivatePkcs8KeyDer::from_pem_file(path).map_err(|error| anyhow!("{error}")).with_context(what)?;
    Ed25519KeyPair::from_pkcs8_maybe_unchecked(key.secret_pkcs8_der()).map_err(|error| {
        anyhow!("{error}: make one with `openssl genpkey -algorithm ed25519`").context(what())
    })
}

/// An envelope of DSSE 1.0.2: <https://github.com/secure-systems-lab/dsse>.
fn signed(key: &Ed25519KeyPair, document: &[u8]) -> anyhow::Result<String> {
    let head = format!("DSSEv1 {} {TYPE} {} ", TYPE.len(), document.len());
    let signature = key.sign(&[head.as_bytes(), document].concat());
    Ok(output::json_lines(&[json!({
        "payloadType": TYPE,
        "payload": STANDARD.encode(document),
        "signatures": [{
            "keyid": STANDARD.encode(key.public_key().as_ref()),
            "sig": STANDARD.encode(signature.as_ref()),
        }],
    })])?)
}

fn text(proof: &Proof) -> String {
    let Proof { postgres_database: database, since, until, subjects, streams, inboxes, not_proven, .. } =
        proof;
    let mut text = format!(
        "database {database}, messages enqueued from {} to {}\n\n",
        output::time(*since),
        output::time(*until)
    );
    let gap = |keys: &[String]| output::clean(&keys.join(" "));
    let rows: Vec<[String; 7]> = subjects
        .iter()
        .map(|one| {
            let [enqueued, stored, waiting, dead, discarded] =
                [one.enqueued, one.stored, one.waiting, one.dead, one.discarded]
                    .map(|count| count.to_string());
            [one.subject.clone(), enqueued, stored, waiting, dead, discarded, gap(&one.gap)]
        })
        .collect();
    text += &output::table(["SUBJECT", "ENQUEUED", "STORED", "WAITING", "DEAD", "DISCARDED", "GAP"], &rows);
    let rows: Vec<[String; 6]> = streams
        .iter()
        .map(|one| {
            let verified = &one.verified;
            let [messages, missing, different, unproven] =
                [verified.messages, verified.missing, verified.different, verified.unproven]
                    .map(|count| count.to_string());
            [verified.stream.clone(), messages, missing, different, unproven, gap(&one.gap)]
        })
        .collect();
    text += "\n";
    text += &output::table(["STREAM", "LOOKED FOR", "MISSING", "DIFFERENT", "LET GO", "GAP"], &rows);
    let rows: Vec<[String; 8]> = inboxes
        .iter()
        .map(|one| {
            let [stored, handled, rejected, dead, missing] =
                [one.stored, one.handled, one.rejected, one.dead, one.missing].map(|count| count.to_string());
            let names = [one.inbox.clone(), one.subject.clone()];
            let [inbox, subject] = names;
            [inbox, subject, stored, handled, rejected, dead, missing, gap(&one.gap)]
        })
        .collect();
    text += "\n";
    text += &output::table(
        ["INBOX", "SUBJECT", "STORED", "HANDLED", "REJECTED", "DEAD", "MISSING", "GAP"],
        &rows,
    );
    text += if proof.is_whole { "\nThere is no gap.\n" } else { "\nThere are gaps.\n" };
    text += &format!("Not proved ({}):\n", counted(not_proven.len(), "point"));
    for point in not_proven {
        text += &format!("- {}\n", output::clean(point));
    }
    text
}
