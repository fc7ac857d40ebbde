//! A page of the chat, as far as the server can tell.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::world::World;

/// The key of the visitor whose id is [`visitor`].
pub(crate) const KEY: &str = "0123456789abcdef0123456789abcdef";

/// The visitor whose page has [`KEY`].
pub(crate) fn visitor() -> String {
    adapter_svc::source::webchat::protocol::visitor_id("default", KEY).expect("a key")
}

/// An open page, as far as the server can tell.
pub(crate) struct Page(pub(crate) WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>);

impl Page {
    pub(crate) async fn open(world: &World) -> Self {
        let mut page = Self::of(&world.base, KEY).await;
        assert_eq!(page.hear("ready").await["peer"], visitor());
        assert_eq!(page.hear("history").await["items"], json!([]));
        page
    }

    /// A page at `base` with `key`, which has said it.
    pub(crate) async fn of(base: &str, key: &str) -> Self {
        Self::hello(base, json!({ "type": "hello", "key": key })).await
    }

    /// A page at `base` that says `hello` first.
    pub(crate) async fn hello(base: &str, hello: Value) -> Self {
        let url = format!("{}/webchat/ws", base.replace("http", "ws"));
        let mut page = Self(connect_async(url).await.expect("a socket").0);
        page.say(hello.to_string()).await;
        page
    }

    pub(crate) async fn say(&mut self, text: impl Into<String>) {
        self.0.send(Message::text(text.into())).await.expect("it is sent");
    }

    /// The next word, which is of `kind`.
    pub(crate) async fn hear(&mut self, kind: &str) -> Value {
        let deadline = Duration::from_secs(20);
        loop {
            let next = tokio::time::timeout(deadline, self.0.next()).await.expect("in time");
            if let Message::Text(text) = next.expect("a word").expect("no fault") {
                let word: Value = serde_json::from_str(&text).expect("json");
                assert_eq!(word["type"], kind, "{word}");
                return word;
            }
        }
    }
}
