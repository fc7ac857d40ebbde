//! A model that cannot be reached is shown to whoever waits and to the operator, and no more once it is back.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use shared::testing::ModelServer;
use shared::testing::model_server::ScriptedAnswer;
use tests::command::{Said, nexus};
use tests::eventually::eventually;
use tests::page::{self, Page};
use tests::world::{Setup, World, shipped_hook};
use tokio_tungstenite::tungstenite::Message;

use crate::story::PATIENCE;

/// Within this time whoever waits is told.
const TOLD_WITHIN: Duration = Duration::from_secs(10);
const CANNOT: &str = "unreachable";

/// The first word of `kind` that the page is told.
async fn told(page: &mut Page, kind: &str) -> Value {
    loop {
        let frame = page.next().await.expect("the page stays open").expect("a frame");
        let Message::Text(text) = frame else { continue };
        let value: Value = serde_json::from_str(&text).expect("JSON");
        if value["type"] == kind {
            return value;
        }
    }
}

async fn command(world: &World, args: &[&str]) -> Said {
    let config = world.stack.config_path();
    let config = config.to_str().expect("a path");
    nexus(world.path(), &[&["--wide", "--config", config], args].concat()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_away_is_shown_until_it_is_back() {
    let first = ModelServer::scripted([]).await;
    let (port, base_url) = (first.port(), first.base_url("openai"));
    drop(first);

    let world = World::start(Setup {
        hooks: vec![("default-dm-routing.ts", shipped_hook("default-dm-routing.ts"))],
        personas: "personas: {default: {runner: llm}}".to_owned(),
        adapter: format!("[llm]\nprovider = \"openai\"\nmodel = \"any\"\nprices.any = {{ input = 0, output = 0 }}\nbase_url = {base_url:?}\n"),
        ..Setup::default()
    })
    .await;

    let mut page = page::open(&world.gateway()).await;
    let message = json!({ "type": "message", "id": "m1", "text": "hi" }).to_string();
    page.send(Message::text(message)).await.expect("it is said");
    let stored = told(&mut page, "stored").await;

    let away = tokio::time::timeout(TOLD_WITHIN, told(&mut page, "away")).await;
    let away = away.unwrap_or_else(|_| panic!("the page is told in time\n{}", world.logs()));
    assert_eq!(away["away"], true, "{away}");
    assert!(
        !away.to_string().contains("127.0.0.1"),
        "a visitor is not told why: {away}"
    );

    let logs = world.logs();
    let warned = logs.lines().any(|line| line.contains("WARN") && line.contains(CANNOT));
    assert!(warned, "{logs}");

    let listed = command(&world, &["session", "list", "--json"]).await;
    let sessions: Value = serde_json::from_str(&listed.out).expect("JSON");
    let session = &sessions[0]["session"];
    let named = ["persona", "session"].map(|key| session[key].as_str().expect("a name"));
    let show = ["session", "show", named[0], named[1]];
    let shown = command(&world, &show).await;

    assert!(shown.out.contains(CANNOT), "{shown:?}");

    let event = stored["event_id"].as_str().expect("an id");
    let trace = ["trace", event, "--wait", "0"];
    let traced = command(&world, &trace).await;

    assert!(traced.out.contains(CANNOT), "{traced:?}");

    let back = ModelServer::ruled_at(port, |_, _| ScriptedAnswer::text("here I am")).await;
    let over = async {
        while told(&mut page, "away").await["away"] == true {}
        told(&mut page, "part").await
    };

    let part = tokio::time::timeout(PATIENCE, over).await;
    let part = part.unwrap_or_else(|_| panic!("an answer in time\n{}", world.logs()));
    assert_eq!(part["text"], "here I am");

    eventually("nothing is shown any more", PATIENCE, async || {
        let (shown, traced) = (command(&world, &show).await, command(&world, &trace).await);
        let quiet = !shown.out.contains(CANNOT) && !traced.out.contains(CANNOT) && traced.out.contains("\ncomplete");
        quiet.then_some(()).ok_or_else(|| format!("{shown:?} {traced:?}"))
    })
    .await;

    assert!(world.logs().contains("agent is reachable again"), "{}", world.logs());

    drop(back);
    world.stack.stop().await;
}
