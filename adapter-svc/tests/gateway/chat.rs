//! The chat page's WebSocket.

use adapter_svc::source::webchat::owner::claim_owner;
use adapter_svc::source::webhook::signature::sha256_hex;
use futures_util::SinkExt;
use serde_json::{Value, json};
use shared::bus::ServiceSpec;
use shared::model::owner::{ChatVisitor, OwnerLink};
use shared::model::time::UnixMillis;
use shared::wire::headers::Headers;
use shared::wire::subject;
use shared::wire::topology::buckets;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::page::{Page, visitor};
use crate::world::World;

#[tokio::test]
async fn a_message_is_acked_once_durable_and_sent_again_is_one_event() {
    let world = World::start("").await;
    let mut page = Page::open(&world).await;
    for _ in 0..2 {
        page.say(r#"{"type":"message","id":"m.1","text":"hello"}"#).await;
        let word = page.hear("stored").await;
        assert_eq!(
            (word["id"].as_str(), word["event_id"].as_str()),
            (Some("m.1"), Some(format!("webchat:default/{}/m.1", visitor()).as_str()))
        );
    }

    page.say(r#"{"type":"message","id":"m.2","text":"more"}"#).await;
    page.hear("stored").await;
    let events = world.events(2).await;

    assert_eq!(
        (events[0].content.as_str(), events[0].peer.id.as_str()),
        ("hello", visitor().as_str())
    );
    assert_eq!(events[1].id.as_str(), format!("webchat:default/{}/m.2", visitor()));
    assert_eq!(
        events[1].origin.to_string(),
        format!("verified:webchat/default/{}", visitor())
    );

    world.stop().await;
}

#[tokio::test]
async fn a_part_reaches_every_open_page_of_its_peer_and_is_answered() {
    let world = World::start("").await;
    let (mut one, mut two) = (Page::open(&world).await, Page::open(&world).await);
    let part = json!({ "delivery": "d", "part": 0, "event_id": "out:d/0", "content": "hi", "reply_to": "x", "at": 5 });
    let to = subject::webchat("default", &visitor());
    let asked = world
        .bus
        .request_bytes(&to, &Headers::new(), part.to_string().into(), Duration::from_secs(10))
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
async fn a_page_is_told_that_its_turn_is_worked_on() {
    let world = World::start("").await;
    let mut page = Page::open(&world).await;
    let to = subject::webchat("default", &visitor());
    for working in [true, false] {
        let word = json!({ "turn": "01T", "working": working }).to_string();
        world.bus.core_publish(&to, &Headers::new(), word.into()).await;
        assert_eq!(page.hear("working").await["working"], working);
    }
    world.stop().await;
}

#[tokio::test]
async fn a_page_is_told_what_became_of_the_cards_that_it_was_shown_and_of_no_others() {
    let world = World::start("").await;
    let approved = Arc::new(AtomicBool::new(false));
    let stands = Arc::clone(&approved);

    let get = move |_: Value| {
        let status = if stands.load(Ordering::Relaxed) {
            "approved"
        } else {
            "pending"
        };
        let confirmation = json!({
            "request": {"id": "a1", "call": "1-1", "tool": "pay", "arguments": {}, "arguments_hash": "00ff",
                        "policy": "payments", "approvers": [], "expires_at": 1_700_000_900_000_i64},
            "status": status, "requested_by": "agent:default", "requested_at": 1, "decided_by": "telegram:42",
        });

        async move { Ok::<_, (usize, String)>(confirmation) }
    };

    let spec = ServiceSpec::new("approval", "test").endpoint("get", get);
    let service = world.bus.serve(spec).await.expect("a service");
    let mut page = Page::open(&world).await;

    let watch =
        |hash: &str| json!({"type": "watch", "cards": [{"approval": "a1", "arguments_hash": hash}]}).to_string();
    page.say(&watch("beef")).await;
    assert_eq!(
        page.hear("decided").await["status"],
        "gone",
        "it was not shown this card"
    );

    page.say(&watch("00ff")).await;
    approved.store(true, Ordering::Relaxed);
    let word = page.hear("decided").await;

    assert_eq!(word, json!({"type": "decided", "approval": "a1", "status": "approved"}));

    service.stop().await;
    world.stop().await;
}

#[tokio::test]
async fn pieces_of_an_answer_are_shown_while_it_is_made() {
    let world = World::start("").await;
    let mut page = Page::open(&world).await;
    let piece = json!({ "turn": "01T", "step": 1, "seq": 0, "text": "two pe", "done": false });
    let to = subject::webchat("default", &visitor());
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
async fn other_sites_are_turned_away() {
    let world = World::start("webchat.max_sockets = 1").await;
    let base = world.base.replace("http", "ws");
    let refused = async |origin: &str| {
        let mut request = format!("{base}/webchat/ws").into_client_request().expect("a request");
        request.headers_mut().insert("origin", origin.parse().expect("a value"));
        match connect_async(request).await {
            Err(Error::Http(response)) => response.status().as_u16(),
            other => panic!("{other:?}"),
        }
    };

    assert_eq!(refused("http://evil.example").await, 403);

    let _page = Page::open(&world).await;
    assert_eq!(refused(&world.base).await, 503);

    world.stop().await;
}

#[tokio::test]
async fn who_has_no_key_of_a_page_is_nobody_there() {
    let world = World::start("").await;
    let known = visitor();
    for key in [known.as_str(), "me", ""] {
        let mut page = Page::of(&world.base, key).await;
        if key == known {
            // An id is no key to itself: it is another visitor's.
            assert_ne!(page.hear("ready").await["peer"], known);
        } else {
            assert_eq!(page.hear("error").await["error"]["where"], "key", "{key}");
        }
    }

    let url = format!("{}/webchat/ws", world.base.replace("http", "ws"));
    let mut silent = Page(connect_async(url).await.expect("a socket").0);
    silent.say(r#"{"type":"message","id":"m","text":"hello"}"#).await;

    assert_eq!(silent.hear("error").await["error"]["where"], "message");
    assert_eq!(world.last().await, 0);

    world.stop().await;
}

#[tokio::test]
async fn the_owners_link_works_once() {
    let world = World::start("").await;
    let links = world.bus.kv::<OwnerLink>(buckets::IDENTITIES);
    let key = |token: &str| format!("link.{}", sha256_hex(&[token.as_bytes()]));

    let now = UnixMillis(1_700_000_000_000);
    for (token, at) in [("GOOD", now), ("LATE", now.plus(-16 * 60_000))] {
        links
            .create(&key(token), &OwnerLink::offered(at, 15))
            .await
            .expect("a link");
    }

    let claim = async |page: &mut Page, token: &str| {
        page.say(json!({ "type": "claim", "link": token }).to_string()).await;
    };
    let mut mine = Page::open(&world).await;
    for wrong in ["LATE", "NONE"] {
        claim(&mut mine, wrong).await;
        assert_eq!(mine.hear("error").await["error"]["code"], "owner_link", "{wrong}");
    }

    for _ in 0..2 {
        claim(&mut mine, "GOOD").await;
        mine.hear("owner").await;
    }

    let bound = links.get(&key("GOOD")).await.expect("read").expect("there").value;
    assert_eq!(bound.claimed_by.map(|claimed| claimed.id), Some(visitor()));

    let mut other = Page::of(&world.base, "another key of another page, long enough").await;
    other.hear("ready").await;
    other.hear("history").await;
    claim(&mut other, "GOOD").await;

    assert_eq!(other.hear("error").await["error"]["code"], "owner_link");

    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_pages_that_claim_one_link_at_once_one_becomes_the_owners() {
    let world = World::start("").await;
    let links = world.bus.kv::<OwnerLink>(buckets::IDENTITIES);
    let key = format!("link.{}", sha256_hex(&[b"RACE"]));
    let offered = OwnerLink::offered(UnixMillis(1_700_000_000_000), 15);
    links.create(&key, &offered).await.expect("a link");

    let claims = (0..16).map(|number| {
        let bus = world.bus.clone();
        tokio::spawn(async move {
            let visitor = ChatVisitor {
                account: "default".to_owned(),
                id: format!("v{number}"),
            };

            claim_owner(&bus, "RACE", &visitor, UnixMillis(1_700_000_000_000))
                .await
                .is_ok()
                .then_some(visitor)
        })
    });

    let mut won = Vec::new();
    for claim in claims.collect::<Vec<_>>() {
        won.extend(claim.await.expect("no panic"));
    }

    let bound = links.get(&key).await.expect("read").expect("there").value;
    assert_eq!((won.len(), bound.claimed_by), (1, won.pop()));

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

    for script in [
        "webchat.js",
        "conversation.js",
        "sidebar.js",
        "lines.js",
        "markdown.js",
        "memory.js",
    ] {
        let (status, text) = world.get(&format!("/webchat/{script}")).await;
        assert_eq!(status, 200, "{script}");

        let unsafe_words = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ];

        assert!(!unsafe_words.iter().any(|word| text.contains(word)), "{script}");
    }

    assert_eq!(world.get("/webchat/other.js").await.0, 404);
    assert_eq!(world.get("/webchat/webchat.css").await.0, 200);

    world.stop().await;
    let world = World::start("webchat.enabled = false").await;
    assert_eq!(world.get("/").await.0, 404);

    world.stop().await;
}
