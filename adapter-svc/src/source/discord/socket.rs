//! The gateway's socket: an HTTP connection that is upgraded to a WebSocket, by the client of all other calls, with its
//! certificates and proxies. Source: RFC 6455 §4; <https://discord.com/developers/docs/events/gateway>.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::StatusCode;
use reqwest::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use sha1::{Digest as _, Sha1};
use shared::platform::discord::SocketUrl;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::api_error::ApiCallError;
use super::client::describe;

/// Maximum time until the socket is open.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum size of a message of the gateway, in bytes: a guild with all its channels is a few megabytes.
const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;

/// Size of the buffer into which a socket is read, in bytes. It is in memory as long as the socket is open, and most of the
/// time nothing comes; the library's own 128 KiB would be 125 MiB for a thousand accounts. A larger message has room while
/// it is read.
const READ_BUFFER_BYTES: usize = 8 * 1024;

/// What the server adds to a key to show that it speaks the protocol (RFC 6455 §1.3).
const ACCEPT_SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// An open socket.
pub(super) type GatewaySocket = WebSocketStream<reqwest::Upgraded>;

/// Opens the socket at `url`. `nonce` is random.
///
/// # Errors
/// Returns [`ApiCallError`] if there is no connection, or no WebSocket at the URL.
pub(super) async fn open_socket(
    http: &reqwest::Client,
    url: &SocketUrl,
    nonce: u128,
) -> Result<GatewaySocket, ApiCallError> {
    let key = STANDARD.encode(nonce.to_be_bytes());
    let request = http
        .get(url.upgrade_url())
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_VERSION, "13")
        .header(SEC_WEBSOCKET_KEY, &key);

    let opened = async {
        let response = request.send().await.map_err(describe)?;
        let status = response.status();
        if status != StatusCode::SWITCHING_PROTOCOLS {
            return Err(ApiCallError::Unreachable(format!(
                "status {} of the gateway",
                status.as_u16()
            )));
        }
        let accepted = response
            .headers()
            .get(SEC_WEBSOCKET_ACCEPT)
            .map(|value| value.as_bytes().to_vec());
        if accepted.as_deref() != Some(accept_value(&key).as_bytes()) {
            return Err(ApiCallError::Malformed("the gateway is no WebSocket".to_owned()));
        }
        response.upgrade().await.map_err(describe)
    };
    let opened = tokio::time::timeout(OPEN_TIMEOUT, opened).await;
    let upgraded = opened.map_err(|_| ApiCallError::Unreachable("the gateway timed out".to_owned()))??;

    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        .max_message_size(Some(MAX_MESSAGE_BYTES))
        .max_frame_size(Some(MAX_MESSAGE_BYTES));
    Ok(WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(config)).await)
}

/// Returns what a server answers to `key`.
fn accept_value(key: &str) -> String {
    STANDARD.encode(Sha1::digest(format!("{key}{ACCEPT_SUFFIX}").as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_a_key_is_that_of_the_standard() {
        assert_eq!(accept_value("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
