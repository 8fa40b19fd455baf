//! One question over HTTP, to a program on this machine.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// The answer of a program on a loopback port to GET, with its status line and headers.
///
/// HTTP 1.0, so that the answer comes in one piece and ends with the connection.
///
/// # Errors
/// No server listens, or the answer is not there, whole and in UTF-8, after 30 seconds.
pub async fn http_get(port: u16, path: &str) -> Result<String> {
    let ask = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    timeout(ANSWER_DEADLINE, ask).await.context("no answer in time")?.with_context(|| format!("GET {path}"))
}
