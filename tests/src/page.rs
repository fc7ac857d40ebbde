//! A chat page, as far as the server can tell.

use futures_util::SinkExt as _;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// The key of the page that the stories open.
pub const KEY: &str = "the key of the page of the stories";

/// A page's socket.
pub type Page = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Opens a page with [`KEY`] at `gateway`.
///
/// # Panics
/// If it cannot be opened.
pub async fn open(gateway: &str) -> Page {
    let address = gateway.replacen("http", "ws", 1);
    let opened = tokio_tungstenite::connect_async(format!("{address}/webchat/ws")).await;
    let (mut page, _) = opened.expect("the page opens");
    let hello = json!({ "type": "hello", "key": KEY }).to_string();
    page.send(Message::text(hello)).await.expect("it is said");
    page
}

/// The visitor of that page, by the rule of adapter-svc.
#[must_use]
pub fn visitor() -> String {
    let hash = Sha256::digest(format!("nexus webchat visitor\0default\0{KEY}"));
    hash[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}
