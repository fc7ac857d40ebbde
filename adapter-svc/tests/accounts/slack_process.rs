//! The real process with an app of Slack that has a socket, killed and replaced.

use std::collections::BTreeSet;

use serde_json::json;
use shared::clock::{Clock as _, SystemClock};
use shared::model::event::PlatformIds;
use shared::testing::eventually;

use crate::process::{start_service, stored};
use crate::socket_api::SocketApi;
use crate::world::stored_events;

const TOKEN: &str = "xoxb-main-secret";

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_point_every_message_is_stored_once_and_none_is_acknowledged_before() {
    check_killed("direct: open").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_texts_wait_for_each_other_every_message_is_stored_once_too() {
    check_killed("direct: open, debounce_ms: 100").await;
}

/// Kills the service with an account that has `keys` again and again, and checks that each message is in one event.
async fn check_killed(keys: &str) {
    let (nats, bus) = shared::testing::world().await;
    let folder = tempfile::tempdir().expect("a folder");
    let app_token = folder.path().join("app-token");
    std::fs::write(&app_token, "xapp-main-secret").expect("a token");
    let api = SocketApi::start(bus.clone()).await;
    let (base, app) = (&api.base, app_token.display());
    let channels = format!(
        "slack: {{accounts: {{main: {{token: 'file:token', app_token: 'file:{app}', receive: socket, \
         base_url: '{base}', {keys}}}}}}}\n"
    );
    let start = || start_service(&nats, &channels, TOKEN, &folder, "adapter-svc-0");

    let (mut expected, begun) = (BTreeSet::new(), SystemClock.now().seconds());
    for round in 0..6_i64 {
        let (opened, acknowledged, count) = (api.opened(), api.acknowledged(), stored(&bus).await.len());
        for number in 1..=30 {
            let stamp = format!("{}.{number:06}", begun + round);
            api.bring(&json!({"type": "message", "channel": "D1", "user": "U5", "text": "hello", "ts": stamp}));
            expected.insert(format!("slack:main/D1/{stamp}"));
        }
        let mut process = start();
        // Killed after it has connected, or stored some, or acknowledged some.
        eventually("it is at work", async || match round % 3 {
            0 => api.opened() > opened,
            1 => stored(&bus).await.len() > count,
            _ => api.acknowledged() > acknowledged,
        })
        .await;
        process.kill();
    }

    let process = start();
    eventually("everything is acknowledged", async || {
        api.acknowledged() >= expected.len() && api.waiting() == 0
    })
    .await;
    let events = stored_events(&bus).await;
    let ids = events
        .iter()
        .filter_map(PlatformIds::from_event)
        .flat_map(|found| found.ids);
    let messages: Vec<String> = ids.map(|id| format!("slack:main/{id}")).collect();
    assert_eq!(messages.len(), expected.len(), "each once");
    assert_eq!(messages.into_iter().collect::<BTreeSet<_>>(), expected);
    assert_eq!(api.early(), Vec::<String>::new(), "acknowledged before it was stored");
    assert_eq!(api.connections(), 1);
    drop(process);
}
