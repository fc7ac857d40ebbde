//! The real process with an account on Discord, killed and replaced.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use shared::bus::Bus;
use shared::clock::{Clock as _, SystemClock};
use shared::model::event::PlatformIds;
use shared::testing::nats::NatsServer;
use shared::testing::{TestProcess, connect_to};
use shared::testing::{eventually, eventually_within};
use shared::wire::watermark::SourceWatermark;
use tempfile::TempDir;

use crate::discord::{MAIN, OPEN};
use crate::discord_api::DiscordApi;
use crate::process::{log_tail, start_service, stored};
use crate::world::stored_events;

/// Starts the service with an account that has `keys`.
fn start(nats: &NatsServer, api: &DiscordApi, folder: &TempDir, keys: &str) -> TestProcess {
    let address = &api.address;
    let channels =
        format!("discord: {{accounts: {{main: {{token: 'file:token', base_url: 'http://{address}/api', {keys}}}}}}}\n");
    start_service(nats, &channels, MAIN, folder, "adapter-svc-0")
}

/// Time within which the last process takes over and reads everything: what it waits for is the lease of the one that was
/// killed, and up to five seconds before it begins a session.
const WITHIN: Duration = Duration::from_secs(120);

/// The account's watermark, for people.
async fn watermark_text(bus: &Bus) -> String {
    let kept = bus.kv::<SourceWatermark>("watermarks");
    format!("watermark: {:?}", kept.get("discord.main").await)
}

async fn has_watermark(bus: &Bus) -> bool {
    let kept = bus.kv::<SourceWatermark>("watermarks");
    kept.get("discord.main").await.is_ok_and(|found| found.is_some())
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_point_it_loses_and_doubles_nothing_whether_or_not_its_session_is_kept() {
    check_killed(OPEN).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_texts_wait_for_each_other_it_loses_and_doubles_nothing_either() {
    check_killed(&format!("{OPEN}, debounce_ms: 100")).await;
}

/// Kills the service with an account that has `keys` again and again, and checks that each message is in one event.
async fn check_killed(keys: &str) {
    let (nats, bus) = shared::testing::world().await;
    let asking = connect_to(&nats.url(), "asking").await;
    let folder = tempfile::tempdir().expect("a folder");
    let api = DiscordApi::start(bus.clone(), Arc::new(SystemClock)).await;

    let mut expected = BTreeSet::new();
    let mut process = start(&nats, &api, &folder, keys);
    eventually("its first session is noted", async || has_watermark(&asking).await).await;
    for round in 0..6_i64 {
        let (begun, confirmed) = (api.begun(MAIN).len(), api.confirmed(MAIN));
        let count = stored(&bus).await.len();
        // Killed after it has stored some, or confirmed some, or before; then the session may be over.
        for number in 1..=30 {
            let (channel, id) = api.say(MAIN, 30 * round + number, SystemClock.now());
            expected.insert(format!("discord:main/{channel}/{id}"));
        }
        eventually("it is at work", async || match round % 3 {
            0 => stored(&bus).await.len() > count,
            1 => api.confirmed(MAIN) > confirmed,
            _ => api.begun(MAIN).len() >= begun,
        })
        .await;
        process.kill();
        if round % 2 == 1 {
            api.forget_sessions(MAIN);
        }
        process = start(&nats, &api, &folder, keys);
    }

    let (mut looks, mut lacking) = (0_u32, String::new());
    eventually_within("everything is confirmed", WITHIN, async || {
        if api.confirmed(MAIN) == expected.len() {
            return Ok(());
        }
        let ended = process.ended();
        assert!(ended.is_none(), "{ended:?}:\n{}", log_tail(&folder, "adapter-svc-0"));
        // Now and then: reading the whole stream holds up what is waited for.
        if looks.is_multiple_of(200) {
            let ids: BTreeSet<String> = stored(&bus).await.into_iter().collect();
            let missing: Vec<&String> = expected.difference(&ids).collect();
            lacking = format!("not stored: {missing:?}\n{}", watermark_text(&asking).await);
        }
        looks += 1;
        Err(format!(
            "not confirmed: {:?}\n{lacking}\nsockets: {:?}\nlog:\n{}",
            api.unconfirmed(MAIN),
            api.begun(MAIN),
            log_tail(&folder, "adapter-svc-0")
        ))
    })
    .await;
    let events = stored_events(&bus).await;
    let ids = events
        .iter()
        .filter_map(PlatformIds::from_event)
        .flat_map(|found| found.ids);
    let messages: Vec<String> = ids.map(|id| format!("discord:main/{id}")).collect();
    assert_eq!(messages.len(), expected.len(), "each once");
    assert_eq!(messages.into_iter().collect::<BTreeSet<_>>(), expected);
    assert_eq!((api.early(MAIN), api.most_open(MAIN)), (Vec::new(), 1));
    drop(process);
}
