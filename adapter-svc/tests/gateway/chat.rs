//! The chat page's WebSocket.

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use shared::wire::headers::Headers;
use shared::wire::subject;
use std::time::Duration;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::world::World;

/// A page of visitor `v 1`.
struct Page(WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>);

impl Page {
    async fn open(world: &World) -> Self {
        let url = format!("{}/webchat/ws?peer=v%201", world.base.replace("http", "ws"));
        let mut page = Self(connect_async(url).await.expect("a socket").0);
        assert_eq!(page.hear("ready").await["peer"], "v 1");
        assert_eq!(page.hear("history").await["items"], json!([]));
        page
    }

    async fn say(&mut self, text: impl Into<String>) {
        self.0.send(Message::text(text.into())).await.expect("it is sent");
    }

    /// The next word, which is of `kind`.
    async fn hear(&mut self, kind: &str) -> Value {
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

#[tokio::test]
async fn a_message_is_acked_once_durable_and_sent_again_is_one_event() {
    let world = World::start("").await;
    let mut page = Page::open(&world).await;
    for _ in 0..2 {
        page.say(r#"{"type":"message","id":"m.1","text":"hello"}"#).await;
        let word = page.hear("stored").await;
        assert_eq!(
            (word["id"].as_str(), word["event_id"].as_str()),
            (Some("m.1"), Some("webchat:default/v 1/m.1"))
        );
    }
    page.say(r#"{"type":"message","id":"m.2","text":"more"}"#).await;
    page.hear("stored").await;
    let events = world.events(2).await;
    assert_eq!(
        (events[0].content.as_str(), events[0].peer.id.as_str()),
        ("hello", "v 1")
    );
    assert_eq!(events[1].id.as_str(), "webchat:default/v 1/m.2");
    world.stop().await;
}

#[tokio::test]
async fn a_part_reaches_every_open_page_of_its_peer_and_is_answered() {
    let world = World::start("").await;
    let (mut one, mut two) = (Page::open(&world).await, Page::open(&world).await);
    let part = json!({ "delivery": "d", "part": 0, "event_id": "out:d/0", "content": "hi", "reply_to": "x", "at": 5 });
    let to = subject::webchat("default", "v 1");
    let asked = world
        .bus
        .ask(&to, &Headers::new(), part.to_string().into(), Duration::from_secs(10))
        .await;
    assert!(asked.is_ok(), "{asked:?}");
    for page in [&mut one, &mut two] {
        let word = page.hear("part").await;
        assert_eq!(
            (word["id"].as_str(), word["text"].as_str()),
            (Some("out:d/0"), Some("hi"))
        );
    }
    world.bus.core_publish(&to, &Headers::new(), "nonsense".into()).await;
    world
        .bus
        .core_publish(&to, &Headers::new(), part.to_string().into())
        .await;
    one.hear("part").await;
    world.stop().await;
}

#[tokio::test]
async fn pieces_of_an_answer_are_shown_while_it_is_made() {
    let world = World::start("").await;
    let mut page = Page::open(&world).await;
    let piece = json!({ "turn": "01T", "step": 1, "seq": 0, "text": "two pe", "done": false });
    let to = subject::webchat("default", "v 1");
    world
        .bus
        .core_publish(&to, &Headers::new(), piece.to_string().into())
        .await;
    let word = page.hear("partial").await;
    assert_eq!(
        (word["turn"].as_str(), word["text"].as_str()),
        (Some("01T"), Some("two pe"))
    );
    world.stop().await;
}

#[tokio::test]
async fn what_a_page_says_wrong_is_named_and_the_socket_stays_open() {
    let world = World::start("").await;
    let mut page = Page::open(&world).await;
    for (said, place) in [("{", "message"), (r#"{"type":"message","id":"","text":"x"}"#, "id")] {
        page.say(said).await;
        assert_eq!(page.hear("error").await["error"]["where"], place);
    }
    page.0.send(Message::binary(vec![0xff])).await.expect("it is sent");
    assert_eq!(page.hear("error").await["error"]["code"], "malformed");
    page.say(r#"{"type":"message","id":"m","text":"x"}"#).await;
    page.hear("stored").await;
    world.stop().await;
}

#[tokio::test]
async fn other_sites_and_bad_ids_are_turned_away() {
    let world = World::start("webchat.max_sockets = 1").await;
    let base = world.base.replace("http", "ws");
    let refused = async |query: &str, origin: &str| {
        let mut request = format!("{base}/webchat/ws?{query}")
            .into_client_request()
            .expect("a request");
        request.headers_mut().insert("origin", origin.parse().expect("a value"));
        match connect_async(request).await {
            Err(Error::Http(response)) => response.status().as_u16(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused("peer=v", "http://evil.example").await, 403);
    assert_eq!(refused("peer=a%2Fb", &world.base).await, 400);
    assert_eq!(refused("", &world.base).await, 400);
    let _page = Page::open(&world).await;
    assert_eq!(refused("peer=v", &world.base).await, 503);
    world.stop().await;
}

#[tokio::test]
async fn the_page_is_served_with_its_hooks_for_a_browser() {
    let world = World::start("").await;
    for path in ["/", "/webchat"] {
        let (status, page) = world.get(path).await;
        assert_eq!(status, 200);
        for hook in ["id=\"message\"", "id=\"send\"", "id=\"log\""] {
            assert!(page.contains(hook), "{hook}");
        }
    }
    assert_eq!(world.get("/webchat/webchat.js").await.0, 200);
    assert_eq!(world.get("/webchat/webchat.css").await.0, 200);
    world.stop().await;
    let world = World::start("webchat.enabled = false").await;
    assert_eq!(world.get("/").await.0, 404);
    world.stop().await;
}
