//! Files that agents send: their bytes are in the object store, and nobody comes to a file of another conversation.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};
use shared::attachments::AttachmentStore;
use shared::bus::Bus;
use shared::clock::SystemClock;
use shared::llm::ModelProvider;
use shared::model::event::Attachment;
use shared::testing::model_server::{ScriptedAnswer, ScriptedCall};
use shared::testing::{ModelServer, eventually};
use shared::wire::headers::Headers;
use shared::wire::subject;

use crate::bench::{Bench, dispatch, session};
use crate::models::{PERSONA, config, send};

/// A picture of one pixel.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0";
/// Asks an agent over the bus.
const REMOTE: &str = "personas: {default: {runner: nats, limits: {reply_timeout_ms: 5000}}}";

async fn load(bus: &Bus, file: &Attachment) -> Vec<u8> {
    let store = AttachmentStore::new(bus, Arc::new(SystemClock));
    let hash = file.stored_hash().expect("the bytes are stored");
    store.load(hash, 1 << 20).await.expect("asked").expect("they are there")
}

/// Answers the next question of the persona with `answer`.
async fn answer(bench: &Bench, answer: Value) {
    let mut agent = bench
        .bus
        .core_subscribe(&subject::agent("default"))
        .await
        .expect("an agent");
    bench.bus.flush().await.expect("it is known");
    let bus = bench.bus.clone();
    let payload: Bytes = serde_json::to_vec(&answer).expect("JSON").into();
    tokio::spawn(async move {
        while let Some(asked) = agent.next().await {
            let place = asked.reply.expect("a place to answer");
            bus.core_publish(&place, &Headers::new(), payload.clone()).await;
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bytes_of_an_answer_are_stored_and_a_hash_alone_opens_nothing() {
    let bench = Bench::start().await;
    let store = AttachmentStore::new(&bench.bus, Arc::new(SystemClock));
    let secret = store
        .store(b"of another conversation"[..].into())
        .await
        .expect("stored");
    let given = store.store(PNG.into()).await.expect("stored");
    let claimed = |hash: &str| {
        json!({"media_type": "document", "state": "stored", "content_hash": hash, "size_bytes": 5,
               "storage_uri": format!("nexus-object:{hash}")})
    };
    let files = json!([
        {"filename": "../notes.txt", "media_type": "document", "mime_type": "text/plain", "data": STANDARD.encode("words")},
        // What the bytes are is found by them.
        {"filename": "chart.png", "media_type": "document", "data": STANDARD.encode(PNG)},
        claimed(&secret),
        claimed(&given),
    ]);
    answer(&bench, json!({"content": "here", "attachments": files})).await;

    let running = bench.run("b1", REMOTE).await;
    let main = session("main");
    let mut asked = dispatch(&main, 1);
    let mut file = Attachment::default();
    file.set_stored(&given, 5);
    asked.message.attachments = vec![file];
    bench.publish(&asked).await;
    bench.claim(&main).await;
    let replies = bench.until_replies(1).await;

    let [notes, chart, foreign, own] = &replies[0].attachments[..] else {
        panic!("{replies:?}");
    };
    assert_eq!(
        (notes.filename.as_deref(), notes.size_bytes),
        (Some("notes.txt"), Some(5))
    );
    assert_eq!(
        (notes.mime_type.as_deref(), load(&bench.bus, notes).await),
        (Some("text/plain"), b"words".to_vec())
    );
    assert_eq!(
        (chart.media_type.as_str(), chart.mime_type.as_deref()),
        ("image", Some("image/png"))
    );
    assert_eq!(load(&bench.bus, chart).await, PNG);
    assert_eq!(
        (foreign.stored_hash(), &foreign.storage_uri, &foreign.content_hash),
        (None, &None, &None)
    );
    assert_eq!(own.stored_hash(), Some(given.as_str()));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_none_fail_the_turn_and_name_the_file() {
    let bench = Bench::start().await;
    let bad = json!({"content": "here", "attachments": [{"media_type": "image", "data": "no base64!"}]});
    answer(&bench, bad).await;
    let running = bench.run("b1", REMOTE).await;
    let main = session("main");
    bench.send(&main, 1).await;
    eventually("the user is told", async || bench.replies().await.len() == 1).await;
    let entries = format!("{:?}", bench.entries(&main).await);
    assert!(entries.contains("attachments[0].data: not base64"), "{entries}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_sends_a_file_to_its_conversation() {
    let calls = [
        (
            json!({"filename": "a.csv", "text": "1,2\n", "caption": "look"}),
            "queued",
        ),
        (json!({"filename": "b.png", "base64": STANDARD.encode(PNG)}), "queued"),
        (
            json!({"filename": "c.png", "stored": format!("nexus-object:{}", "0".repeat(64))}),
            "no file of the messages",
        ),
        (json!({"filename": "d"}), "give one of"),
        (json!({"filename": "e", "base64": "%%"}), "not base64"),
    ];
    for (wanted, expected) in calls {
        let bench = Bench::start().await;
        let arguments = wanted.clone();
        let server = ModelServer::ruled(move |request, _| match request.tool_results().last() {
            None => ScriptedAnswer::calls([ScriptedCall::new("c1", "send_file", &arguments)]),
            Some(told) => ScriptedAnswer::text(told),
        })
        .await;
        let running = bench
            .run_asking("b1", PERSONA, config(&server, ModelProvider::OpenAi, "openai"))
            .await;
        let here = session("near");
        send(&bench, &here, 1, &["*"], 0).await;
        let is_sent = expected == "queued";
        let replies = bench.until_replies(1 + usize::from(is_sent)).await;
        let answer = replies.last().expect("an answer");
        assert!(answer.content.contains(expected), "{wanted}: {}", answer.content);
        if is_sent {
            let sent = &replies[0];
            assert!(sent.id != sent.turn && sent.turn == answer.turn && sent.session == answer.session);
            assert_eq!(sent.delivery_context, answer.delivery_context, "no other conversation");
            assert_eq!(sent.content, wanted["caption"].as_str().unwrap_or_default());
            let bytes = load(&bench.bus, &sent.attachments[0]).await;
            assert!(bytes == b"1,2\n" || bytes == PNG);
            assert_eq!(sent.attachments[0].filename.as_deref(), wanted["filename"].as_str());
        }
        running.stop().await;
    }
}
