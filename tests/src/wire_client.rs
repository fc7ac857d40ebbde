//! A client that speaks the protocol of the bus itself, and so tries what no client of ours would.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use shared::credentials::UserCredentials;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// A connection to a server.
#[derive(Debug)]
pub struct WireClient {
    stream: BufReader<TcpStream>,
}

impl WireClient {
    /// Connects to `url` with the credentials in the file at `path`.
    ///
    /// # Errors
    /// Returns what the server says against it.
    pub async fn connect(url: &str, path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        let credentials = UserCredentials::parse(&text).map_err(|error| error.to_string())?;
        let socket = TcpStream::connect(url.trim_start_matches("nats://")).await;
        let mut stream = BufReader::new(socket.map_err(|error| error.to_string())?);

        let mut line = String::new();
        stream.read_line(&mut line).await.map_err(|error| error.to_string())?;
        let info: Value = serde_json::from_str(line.trim_start_matches("INFO ")).map_err(|error| error.to_string())?;
        let nonce = info["nonce"].as_str().unwrap_or_default();
        let signature = credentials.sign(nonce.as_bytes()).map_err(|error| error.to_string())?;
        let shown = json!({
            "verbose": false, "pedantic": false, "headers": true, "name": "wire-client",
            "jwt": credentials.token(), "sig": URL_SAFE_NO_PAD.encode(signature),
        });

        let mut client = Self { stream };
        let refused = client.say(&format!("CONNECT {shown}\r\n")).await?;
        refused.into_iter().next().map_or(Ok(client), Err)
    }

    /// Sends `lines`, and returns the errors that the server answers with.
    ///
    /// # Errors
    /// Returns why the connection has ended.
    pub async fn say(&mut self, lines: &str) -> Result<Vec<String>, String> {
        let text = format!("{lines}PING\r\n");
        self.stream
            .get_mut()
            .write_all(text.as_bytes())
            .await
            .map_err(|error| error.to_string())?;

        let mut errors = Vec::new();
        loop {
            let mut line = String::new();
            let read = self
                .stream
                .read_line(&mut line)
                .await
                .map_err(|error| error.to_string())?;
            match line.trim_end() {
                _ if read == 0 => return Err(errors.pop().unwrap_or_else(|| "the server has gone".to_owned())),
                "PONG" => return Ok(errors),
                "PING" => {
                    let answered = self.stream.get_mut().write_all(b"PONG\r\n").await;
                    answered.map_err(|error| error.to_string())?;
                }
                other => errors.extend(other.strip_prefix("-ERR ").map(str::to_owned)),
            }
        }
    }

    /// Publishes nothing on `subject`, with `reply` as the subject of the answer. Returns whether the server let it.
    ///
    /// # Errors
    /// Returns why the connection has ended.
    pub async fn publish(&mut self, subject: &str, reply: &str) -> Result<bool, String> {
        let errors = self.say(&format!("PUB {subject} {reply} 2\r\n{{}}\r\n")).await?;
        Ok(errors.is_empty())
    }

    /// Publishes nothing on `subject`, and asks the server to tell on `place` which way that takes. Returns whether the server let it.
    ///
    /// # Errors
    /// Returns why the connection has ended.
    pub async fn publish_traced(&mut self, subject: &str, place: &str) -> Result<bool, String> {
        let headers = format!("NATS/1.0\r\nNats-Trace-Dest: {place}\r\n\r\n");
        let (head, all) = (headers.len(), headers.len() + 2);
        let errors = self
            .say(&format!("HPUB {subject} {head} {all}\r\n{headers}{{}}\r\n"))
            .await?;
        Ok(errors.is_empty())
    }

    /// Subscribes to `subject`, and ends that at once. Returns whether the server let it.
    ///
    /// # Errors
    /// Returns why the connection has ended.
    pub async fn subscribe(&mut self, subject: &str) -> Result<bool, String> {
        let errors = self.say(&format!("SUB {subject} 1\r\nUNSUB 1\r\n")).await?;
        Ok(errors.is_empty())
    }
}
