//! A WebSocket over the HTTP client of all calls, whose certificates and limits it shares.
//!
//! Source: RFC 6455 §4.1. The address has a ticket that is good for one connection, so that no error has it.

use std::time::Duration;

use base64::Engine as _;
use reqwest::{StatusCode, Upgraded, Url};
use shared::clock::SharedIds;
use shared::error_chain::describe_causes;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::client::WebCallError;

/// Maximum time until the socket is open.
const OPEN_WITHIN: Duration = Duration::from_secs(15);
/// Maximum size of a frame, in bytes: larger than any payload of Slack's.
const MAX_FRAME_BYTES: usize = 4 * 1024 * 1024;
/// Size of the buffer into which a socket is read, in bytes. It is in memory as long as the socket is open, and most of the
/// time nothing comes; the library's own 128 KiB would be 125 MiB for a thousand accounts.
const READ_BUFFER_BYTES: usize = 4 * 1024;

/// An open socket.
pub type Socket = WebSocketStream<Upgraded>;

/// Opens a socket to `url`, which Slack has named, by the client `http`, which speaks HTTP/1 alone.
///
/// # Errors
/// Returns [`WebCallError::Unreachable`] if `url` is not safe, or the server does not open a socket in time.
pub async fn open_socket(http: &reqwest::Client, url: &str, ids: &SharedIds) -> Result<Socket, WebCallError> {
    let refused = |why: &str| WebCallError::Unreachable(format!("the socket was not opened: {why}"));
    let url = http_url(url).ok_or_else(|| refused("its address is neither wss nor of this machine"))?;
    let lost = |error: reqwest::Error| refused(&describe_causes("the call failed", &error.without_url()));

    let key = base64::engine::general_purpose::STANDARD.encode(ids.ulid().to_bytes());
    let opened = async {
        let request = http
            .get(url)
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", &key);
        let response = request.send().await.map_err(lost)?;

        let accepted = response.headers().get("sec-websocket-accept");
        let is_answered = accepted.is_some_and(|value| *value == derive_accept_key(key.as_bytes()));
        if response.status() != StatusCode::SWITCHING_PROTOCOLS || !is_answered {
            return Err(refused(&format!("status {}", response.status().as_u16())));
        }
        response.upgrade().await.map_err(lost)
    };

    let opened = tokio::time::timeout(OPEN_WITHIN, opened).await;
    let stream = opened.map_err(|_| refused("timed out"))??;
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        .max_message_size(Some(MAX_FRAME_BYTES));
    Ok(WebSocketStream::from_raw_socket(stream, Role::Client, Some(config)).await)
}

/// Returns the address of the handshake for the socket `url`; `None` if others could read the traffic.
fn http_url(url: &str) -> Option<Url> {
    let mut url = Url::parse(url).ok()?;
    let is_local = || {
        let host = url
            .host_str()
            .unwrap_or_default()
            .trim_start_matches('[')
            .trim_end_matches(']');
        host.parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
    };
    let scheme = match url.scheme() {
        "wss" => "https",
        "ws" if is_local() => "http",
        _ => return None,
    };
    url.set_scheme(scheme).ok()?;
    url.has_host().then_some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_that_nobody_else_can_read_are_opened() {
        for (url, expected) in [
            (
                "wss://wss-primary.slack.com/link/?ticket=x",
                Some("https://wss-primary.slack.com/link/?ticket=x"),
            ),
            ("ws://127.0.0.1:9/link", Some("http://127.0.0.1:9/link")),
            ("ws://[::1]:9/link", Some("http://[::1]:9/link")),
            ("ws://wss-primary.slack.com/link", None),
            ("ws://10.0.0.1/link", None),
            ("https://slack.com", None),
            ("link", None),
        ] {
            assert_eq!(http_url(url).as_ref().map(Url::as_str), expected, "{url}");
        }
    }
}
