//! The conversations of a visitor of the chat page: each but the first is a thread of the visitor's events.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use shared::bus::{ServiceHandle, ServiceSpec};
use shared::wire::headers::Headers;
use shared::wire::subject;

use crate::page::{KEY, Page, visitor};
use crate::world::World;

/// Another visitor's key.
const OTHER: &str = "another key of another page, long enough";

/// The questions that the read model was asked.
type Asked = Arc<Mutex<Vec<Value>>>;

/// A read model that has two events in every thread it is asked for, and two threads of everybody.
async fn read_model(world: &World) -> (ServiceHandle, Asked) {
    let asked = Asked::default();
    let note = {
        let asked = Arc::clone(&asked);
        move |question: &Value| {
            asked
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(question.clone());
        }
    };
    let note_too = note.clone();

    let history = move |question: Value| {
        note(&question);
        let event = |n: u64, direction: &str| {
            json!({ "id": format!("x:{n}"), "sequence": n, "timestamp": n, "published_at": n, "channel": "webchat",
                    "account": "default", "peer_kind": "dm", "peer_id": question["peer"], "from_id": "", "hops": 0,
                    "direction": direction, "content_types": ["text"], "thread_id": question["thread"],
                    "content": format!("{n} in {}", question["thread"].as_str().unwrap_or_default()) })
        };
        let reply = json!({ "events": [event(1, "received"), event(2, "sent")], "more": false });
        async move { Ok::<_, (usize, String)>(reply) }
    };
    let threads = move |question: Value| {
        note_too(&question);
        let own = format!("webchat:default:{}", question["peer"].as_str().unwrap_or_default());
        let row = |thread: &str, at: u64| json!({ "thread": thread, "excerpt": "hi", "began_at": 1, "last_at": at });
        let reply = json!({ "threads": [row("7f", 9), row(&own, 5)] });
        async move { Ok::<_, (usize, String)>(reply) }
    };

    let spec = ServiceSpec::new("events", "test")
        .endpoint("history", history)
        .endpoint("threads", threads);
    (world.bus.serve(spec).await.expect("a service"), asked)
}

#[tokio::test]
async fn a_page_lists_its_visitors_conversations_and_opens_one_after_the_other() {
    let world = World::start("").await;
    let (service, asked) = read_model(&world).await;
    let own = format!("webchat:default:{}", visitor());

    // As it is opened again, the page shows the conversation that it showed last.
    let mut page = Page::hello(&world.base, json!({ "type": "hello", "key": KEY, "thread": "7f" })).await;
    page.hear("ready").await;
    let shown = page.hear("history").await;
    assert_eq!(
        (&shown["thread"], &shown["items"][0]["text"], &shown["items"][1]["from"]),
        (&json!("7f"), &json!("1 in 7f"), &json!("system"))
    );

    let listed = page.hear("threads").await;
    let first = json!({ "text": "hi", "began_at": 1, "at": 5 });
    let begun = json!({ "thread": "7f", "text": "hi", "began_at": 1, "at": 9 });
    assert_eq!(listed["items"], json!([begun, first]), "the first has no thread");

    for (thread, history) in [(json!(null), own.as_str()), (json!(own), &own), (json!("7f"), "7f")] {
        page.say(json!({ "type": "open", "thread": thread }).to_string()).await;
        let shown = page.hear("history").await;
        let expected = if history == own { json!(null) } else { json!("7f") };
        assert_eq!(shown["thread"], expected);
        assert_eq!(shown["items"][0]["text"], format!("1 in {history}"));
    }

    page.say(r#"{"type":"earlier","thread":"7f","before":1}"#).await;
    let earlier = page.hear("history").await;
    assert_eq!(
        (&earlier["thread"], &earlier["before"], &earlier["more"]),
        (&json!("7f"), &json!(1), &json!(false))
    );
    assert_eq!(earlier["items"][1]["sequence"], 2);

    let asked = asked.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let last = asked.last().expect("a question");
    assert_eq!((&last["before"], &last["thread"]), (&json!(1), &json!("7f")));
    assert!(
        asked
            .iter()
            .all(|question| question["peer"] == visitor() && question["channel"] == "webchat"),
        "{asked:?}"
    );

    service.stop().await;
    world.stop().await;
}

#[tokio::test]
async fn a_page_that_names_anothers_conversation_reads_and_writes_in_its_own() {
    let world = World::start("").await;
    let (service, asked) = read_model(&world).await;
    let mine = format!("webchat:default:{}", visitor());
    let theirs = adapter_svc::source::webchat::protocol::visitor_id("default", OTHER).expect("a key");

    for (n, thread) in ["7f", &mine, "a/b", "main", "x:thread:7f"].into_iter().enumerate() {
        let mut page = Page::hello(&world.base, json!({ "type": "hello", "key": OTHER, "thread": thread })).await;
        page.hear("ready").await;
        page.hear("history").await;
        page.hear("threads").await;

        page.say(json!({ "type": "message", "id": format!("m{n}"), "text": "hi", "thread": thread }).to_string())
            .await;
        page.hear("stored").await;

        let events = world.events(n as u64 + 1).await;
        let event = events.last().expect("an event");
        assert_eq!((event.peer.id.as_str(), event.from.id.as_str()), (&*theirs, &*theirs));
        // The read model's name of another conversation is none of a page's threads.
        let named = Some(thread).filter(|thread| !thread.contains(':'));
        assert_eq!(event.thread_id.as_deref(), named);
        assert_eq!(event.id.as_str(), format!("webchat:default/{theirs}/m{n}"));
    }

    let asked = asked.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(asked.iter().all(|question| question["peer"] == theirs), "{asked:?}");

    service.stop().await;
    world.stop().await;
}

#[tokio::test]
async fn a_message_belongs_to_its_conversation_and_to_the_first_if_it_names_none() {
    let world = World::start("").await;
    let mut page = Page::open(&world).await;
    let own = format!("webchat:default:{}", visitor());

    let threads = [json!(null), json!("7f"), json!(own), json!("b2")];
    for (n, thread) in threads.iter().enumerate() {
        // Sent again, it is the same event.
        for _ in 0..2 {
            page.say(json!({ "type": "message", "id": format!("m{n}"), "text": "hi", "thread": thread }).to_string())
                .await;
            page.hear("stored").await;
        }
    }

    let events = world.events(4).await;
    let stored: Vec<Option<&str>> = events.iter().map(|event| event.thread_id.as_deref()).collect();
    assert_eq!(stored, [None, Some("7f"), None, Some("b2")]);

    for wrong in ["", "a\u{7}", &"x".repeat(513)] {
        for word in ["open", "message"] {
            let said = match word {
                "open" => json!({ "type": "open", "thread": wrong }),
                _ => json!({ "type": "message", "id": "m9", "text": "hi", "thread": wrong }),
            };
            page.say(said.to_string()).await;
            assert_eq!(page.hear("error").await["error"]["where"], "thread", "{word} {wrong:?}");
        }
    }

    world.stop().await;
}

#[tokio::test]
async fn what_comes_for_a_page_says_in_which_conversation() {
    let world = World::start("").await;
    let mut page = Page::open(&world).await;
    let to = subject::webchat("default", &visitor());

    for (kind, word) in [
        (
            "part",
            json!({ "event_id": "out:d/0", "content": "hi", "thread": "7f", "at": 5 }),
        ),
        (
            "partial",
            json!({ "turn": "01T", "step": 1, "seq": 0, "text": "x", "done": false, "thread": "7f" }),
        ),
        ("working", json!({ "turn": "01T", "working": true, "thread": "7f" })),
        ("away", json!({ "turn": "01T", "away": true, "thread": "7f" })),
    ] {
        world
            .bus
            .core_publish(&to, &Headers::new(), word.to_string().into())
            .await;
        assert_eq!(page.hear(kind).await["thread"], "7f", "{kind}");
    }

    world.stop().await;
}
