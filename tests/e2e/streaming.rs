//! An answer that is being made is seen on the page of the web chat before it is whole.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tests::page;
use tests::world::{Setup, World, shipped_hook};
use tokio_tungstenite::tungstenite::Message;

use crate::story::PATIENCE;

/// Says the first half of its answer, waits until the page has seen it, and says the rest.
fn personas(gate: &std::path::Path) -> String {
    let script = r#"read -r _; printf '{"type": "text", "text": "Hello "}\n'; while [ ! -e "$GATE" ]; do sleep 0.05; done;
      printf '{"type": "text", "text": "world"}\n{"type": "answer"}\n'"#;
    let persona = json!({ "runner": "process",
        "process": { "command": "bash", "args": ["-c", script], "env": { "GATE": gate } } });
    json!({ "personas": { "default": persona } }).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_sees_an_answer_while_it_is_made() {
    let directory = tempfile::tempdir().expect("a directory");
    let gate = directory.path().join("seen");
    let world = World::start(Setup {
        hooks: vec![("default-dm-routing.ts", shipped_hook("default-dm-routing.ts"))],
        personas: personas(&gate),
        ..Setup::default()
    })
    .await;

    let mut page = page::open(&world.gateway()).await;
    let message = json!({ "type": "message", "id": "m1", "text": "hi" }).to_string();
    page.send(Message::text(message)).await.expect("it is said");
    let mut pieces = String::new();

    let seen = async {
        loop {
            let frame = page.next().await.expect("the page stays open").expect("a frame");
            let Message::Text(text) = frame else { continue };
            let value: Value = serde_json::from_str(&text).expect("JSON");
            match value["type"].as_str() {
                Some("partial") => {
                    assert_eq!(value["step"], json!(1));
                    pieces.push_str(value["text"].as_str().expect("a text"));
                    std::fs::write(&gate, "").expect("the agent may go on");
                }
                Some("part") => return value["text"].as_str().expect("a text").to_owned(),
                _ => {}
            }
        }
    };

    let whole = tokio::time::timeout(PATIENCE + Duration::from_secs(1), seen).await;
    let whole = whole.unwrap_or_else(|_| panic!("an answer in time\n{}", world.logs()));
    assert_eq!(whole, "Hello world");
    assert!(
        gate.exists() && whole.starts_with(&pieces) && !pieces.is_empty(),
        "{pieces}"
    );

    world.stack.stop().await;
}
