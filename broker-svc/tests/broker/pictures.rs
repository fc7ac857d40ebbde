//! Images of messages reach a model as such, over each wire, with their bytes.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};
use shared::attachments::AttachmentStore;
use shared::clock::SystemClock;
use shared::llm::ModelProvider;
use shared::model::event::Attachment;
use shared::testing::model_server::{ModelWire, RecordedRequest, ScriptedAnswer};
use shared::testing::{ModelServer, eventually};

use crate::bench::{Bench, dispatch, session};
use crate::models::{PERSONA, config};

/// A picture of one pixel.
pub(crate) const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0";

/// The images of the newest message of a user, as their types and bytes.
pub(crate) fn images(request: &RecordedRequest) -> Vec<(String, Vec<u8>)> {
    let list = match request.wire {
        ModelWire::OpenAi | ModelWire::Anthropic => &request.body["messages"],
        ModelWire::Gemini => &request.body["contents"],
    };
    let newest = list.as_array().expect("messages").last().expect("a message");
    let parts = newest
        .get("content")
        .or_else(|| newest.get("parts"))
        .expect("a content");
    let found = parts.as_array().into_iter().flatten().filter_map(|part| {
        let (kind, data) = match request.wire {
            ModelWire::OpenAi => {
                let url = part["image_url"]["url"].as_str()?.strip_prefix("data:").expect("data");
                url.split_once(";base64,").expect("base64")
            }
            ModelWire::Anthropic => {
                let source = part.get("source")?;
                assert_eq!((&part["type"], &source["type"]), (&json!("image"), &json!("base64")));
                (source["media_type"].as_str()?, source["data"].as_str()?)
            }
            ModelWire::Gemini => {
                let data = part.get("inlineData")?;
                (data["mimeType"].as_str()?, data["data"].as_str()?)
            }
        };
        if !kind.starts_with("image/") {
            return None;
        }
        Some((kind.to_owned(), STANDARD.decode(data).expect("base64")))
    });
    found.collect()
}

/// Stores `bytes`, and returns their attachment.
pub(crate) async fn stored(bench: &Bench, name: &str, bytes: &'static [u8]) -> Attachment {
    let store = AttachmentStore::new(&bench.bus, Arc::new(SystemClock));
    let hash = store.store(Bytes::from_static(bytes)).await.expect("stored");
    let mut file = Attachment {
        media_type: "image".to_owned(),
        filename: Some(name.to_owned()),
        ..Attachment::default()
    };
    file.set_stored(&hash, u64::try_from(bytes.len()).expect("small"));
    file
}

/// Sends a message with `files` to the session `name`, and waits for its answer.
pub(crate) async fn look(bench: &Bench, name: &str, files: Vec<Attachment>) {
    let here = session(name);
    let mut dispatch = dispatch(&here, 1);
    dispatch.message.content = "look".to_owned();
    dispatch.message.attachments = files;
    bench.publish(&dispatch).await;
    bench.claim(&here).await;
    eventually("the turn", async || bench.completed(&here).await.len() == 1).await;
}

pub(crate) const WIRES: [(ModelProvider, &str); 3] = [
    (ModelProvider::OpenAi, "openai"),
    (ModelProvider::Gemini, "gemini"),
    (ModelProvider::Anthropic, "anthropic"),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_model_gets_the_bytes_of_an_image_over_each_wire() {
    let bench = Bench::start().await;
    let picture = stored(&bench, "a.png", PNG).await;
    // What is stored and is no image of a kind that models take, what is gone, and what was never there.
    let text = stored(&bench, "b.png", b"words").await;
    let mut gone = picture.clone();
    gone.set_stored(&"0".repeat(64), 5);
    let mut refused = Attachment {
        media_type: "image".to_owned(),
        ..Attachment::default()
    };
    refused.refuse_too_large(20_971_520);

    for (provider, name) in WIRES {
        let server = ModelServer::ruled(|_, _| ScriptedAnswer::text("a pixel")).await;
        let running = bench.run_asking("b1", PERSONA, config(&server, provider, name)).await;
        let files = vec![picture.clone(), text.clone(), gone.clone(), refused.clone()];
        look(&bench, name, files).await;

        let requests = server.requests();
        assert_eq!(requests.len(), 1, "{name}");
        assert_eq!(images(&requests[0]), [("image/png".to_owned(), PNG.to_vec())], "{name}");
        let said = requests[0].last_user_text();
        assert!(said.starts_with("look\n[attached: image a.png nexus-object:"), "{said}");
        assert!(said.contains("not available: too_large, limit 20.9 MB"), "{said}");
        assert!(said.ends_with("[3 images are not shown to you]"), "{said}");
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_takes_no_images_is_asked_without_them() {
    let bench = Bench::start().await;
    let picture = stored(&bench, "a.png", PNG).await;
    for (provider, name) in WIRES {
        let answer = |request: &RecordedRequest, _: usize| {
            if images(request).is_empty() {
                ScriptedAnswer::text("I cannot see it")
            } else {
                ScriptedAnswer::status(
                    400,
                    "{\"error\":{\"message\":\"this model does not support image input\"}}",
                )
            }
        };
        let server = ModelServer::ruled(answer).await;
        let running = bench.run_asking("b1", PERSONA, config(&server, provider, name)).await;
        look(&bench, &format!("{name}-without"), vec![picture.clone()]).await;

        let requests = server.requests();
        assert_eq!(requests.len(), 2, "{name}");
        let said = requests[1].last_user_text();
        assert!(said.ends_with("[one image is not shown to you]"), "{said}");
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_persona_may_have_no_images() {
    let bench = Bench::start().await;
    let picture = stored(&bench, "a.png", PNG).await;
    let server = ModelServer::ruled(|_, _| ScriptedAnswer::text("which one?")).await;
    let personas = "personas: {default: {runner: llm, prompt: be brief, images: false}}";
    let running = bench
        .run_asking("b1", personas, config(&server, ModelProvider::OpenAi, "openai"))
        .await;
    look(&bench, "none", vec![picture]).await;
    let requests = server.requests();
    assert_eq!(images(&requests[0]), Vec::new());
    let body: &Value = &requests[0].body;
    let content = body["messages"][1]["content"].as_str().expect("text alone");
    assert!(content.ends_with("[one image is not shown to you]"), "{content}");
    running.stop().await;
}
