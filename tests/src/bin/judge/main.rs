//! A judge from outside: reads the producers' ledger, the stream and the consumers' tables of any
//! service that uses an outbox, and names messages that were lost, doubled, reordered or invented.
//!
//! It has no code of Oncebox, and knows of it one header, which `--header` replaces. Run it when
//! everything has come to rest.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

mod sources;
mod verdict;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use sources::{Sources, StreamSource};
use verdict::Verdict;

const USAGE: &str = "usage: judge --producers URL --ledger SQL --nats URL --stream NAME [--subject FILTER] \
     [--header NAME] [--consumers URL --effects SQL]...
  --ledger SQL   all committed messages: key text, ordering key text or NULL, place bigint or NULL, which grows with
                 each message of the ordering key
  --effects SQL  the keys (text) of a consumer's effects, in the order in which they happened";

#[tokio::main]
async fn main() -> ExitCode {
    match judge(std::env::args().skip(1)).await {
        Ok(verdict) => {
            println!("{verdict}");
            if verdict.is_right() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("judge: {error:#}");
            ExitCode::from(2)
        }
    }
}

async fn judge(arguments: impl Iterator<Item = String>) -> Result<Verdict> {
    let sources = options(arguments)?;
    let mut verdict = Verdict::default();
    sources.committed(|message| verdict.commit(message)).await.context("read the producers' ledger")?;
    let mut look = verdict.stream();
    sources.stream.each_key(|key| look.key(key)).await.context("read the stream")?;
    look.end_stream();
    for (url, query) in &sources.effects {
        let mut look = verdict.effects();
        sources::each_key(url, query, |key| look.key(key)).await.context("read the effects")?;
        look.end_effects();
    }
    Ok(verdict)
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Sources> {
    let (mut producers, mut ledger, mut consumers) = (None, None, None);
    let mut effects = Vec::new();
    let mut stream = StreamSource { header: "Idempotency-Key".to_owned(), ..StreamSource::default() };
    while let Some(name) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{name} needs a value\n{USAGE}"))?;
        match name.as_str() {
            "--producers" => producers = Some(value),
            "--ledger" => ledger = Some(value),
            "--nats" => stream.url = value,
            "--stream" => stream.name = value,
            "--subject" => stream.subject = value,
            "--header" => stream.header = value,
            "--consumers" => consumers = Some(value),
            "--effects" => {
                let url =
                    consumers.clone().or_else(|| producers.clone()).context("--consumers comes first")?;
                effects.push((url, value));
            }
            _ => bail!("{USAGE}"),
        }
    }
    let (producers, ledger) = producers.zip(ledger).context(USAGE)?;
    if stream.url.is_empty() || stream.name.is_empty() {
        bail!("{USAGE}");
    }
    Ok(Sources { producers, ledger, stream, effects })
}
