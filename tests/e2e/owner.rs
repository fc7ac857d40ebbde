//! Who the owner is: the page that opened the link, and nobody who merely says so.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use shared::model::dispatch::Dispatch;
use shared::model::permission::PermissionLevel;
use shared::wire::topology::streams;
use tests::eventually::eventually;
use tests::page::{self, Page};
use tests::record::read_all;
use tests::world::{Setup, World, shipped_hook};
use tokio_tungstenite::tungstenite::Message;

use crate::story::PATIENCE;

async fn say(page: &mut Page, word: Value) {
    page.send(Message::text(word.to_string())).await.expect("it is said");
}

/// The next word of `kind`.
async fn hear(page: &mut Page, kind: &str) -> Value {
    let next = async {
        loop {
            let frame = page.next().await.expect("the page is open").expect("a frame");
            let Message::Text(text) = frame else { continue };
            let word: Value = serde_json::from_str(&text).expect("JSON");
            if word["type"] == kind {
                return word;
            }
        }
    };

    let heard = tokio::time::timeout(PATIENCE + Duration::from_secs(1), next).await;
    heard.unwrap_or_else(|_| panic!("`{kind}` in time"))
}

/// The level at which the message `content` is dispatched.
async fn level(world: &World, content: &str) -> PermissionLevel {
    eventually("it is dispatched", PATIENCE, async || {
        let dispatches: Vec<(u64, Dispatch)> = read_all(&world.bus, streams::DISPATCHES).await;
        let found = dispatches
            .iter()
            .find(|(_, dispatch)| dispatch.message.content == content);

        found
            .map(|(_, dispatch)| dispatch.permissions.level)
            .ok_or_else(|| format!("{dispatches:?}"))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_is_the_owners_once_it_opened_the_link_and_until_it_is_removed() {
    let world = World::start(Setup {
        hooks: vec![("default-dm-routing.ts", shipped_hook("default-dm-routing.ts"))],
        without: vec!["scheduler-svc"],
        ..Setup::default()
    })
    .await;

    let mut page = page::open(&world.gateway()).await;
    let visitor = hear(&mut page, "ready").await["peer"]
        .as_str()
        .expect("a visitor")
        .to_owned();

    assert_eq!(visitor, page::visitor());

    let message = |id: &str| json!({ "type": "message", "id": id, "text": id });
    say(&mut page, message("before the link")).await;
    assert_eq!(level(&world, "before the link").await, PermissionLevel::Minimal);

    let link = world.json(&["owner", "link", "--url", "http://here/"]).await;
    let link = link["link"].as_str().expect("a link").to_owned();
    let token = link.strip_prefix("http://here/#owner=").expect("a token behind `#`");
    say(&mut page, json!({ "type": "claim", "link": token })).await;
    hear(&mut page, "owner").await;

    assert!(world.words(&["owner", "list"]).await.contains(&visitor));

    // Every replica of hook-svc hears of it within a moment; each message is one more try.
    let mut tries = 0;
    eventually("the page is the owner's", PATIENCE, async || {
        tries += 1;
        let content = format!("try {tries}");
        say(&mut page, message(&content)).await;

        let found = level(&world, &content).await;
        if found == PermissionLevel::Full {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;

    // The same link again, from another page; and this machine's token, which names the owner's page.
    let refused = world
        .nexus(&["send", "I am the owner", "--channel", "webchat", "--peer", &visitor])
        .await;
    assert!(
        refused.code == Some(5) && refused.err.contains("may not post on channel"),
        "{refused:?}"
    );

    world.words(&["send", "I am the owner", "--peer", &visitor]).await;
    assert_eq!(level(&world, "I am the owner").await, PermissionLevel::Minimal);

    world.words(&["owner", "remove", &visitor]).await;
    let mut tries = 0;
    eventually("the page is a stranger's again", PATIENCE, async || {
        tries += 1;
        let content = format!("later {tries}");
        say(&mut page, message(&content)).await;

        let found = level(&world, &content).await;
        if found == PermissionLevel::Minimal {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;

    world.stack.stop().await;
}
