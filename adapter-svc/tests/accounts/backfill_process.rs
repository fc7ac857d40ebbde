//! The real process that reads a backfill, killed and replaced.

use std::collections::BTreeSet;

use serde_json::json;
use shared::clock::{Clock as _, SystemClock};
use shared::model::time::UnixMillis;
use shared::testing::{connect_to, eventually};
use shared::wire::operator::backfill::{BackfillJob, BackfillState};

use crate::backfill::{DAY_MS, ask, ended, message, order, stamp};
use crate::process::{start_service, stored};
use crate::web_api::{SECRET, WebApi};

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_point_another_replica_goes_on_and_nothing_is_lost_or_doubled() {
    let (nats, bus) = shared::testing::world().await;
    let asking = connect_to(&nats.url(), "asking").await;
    let (folder, api) = (tempfile::tempdir().expect("a folder"), WebApi::start().await);
    let (secret, base) = (folder.path().join("signing-secret"), &api.base);
    std::fs::write(&secret, SECRET).expect("a secret");
    let channels = format!(
        "slack: {{accounts: {{main: {{token: 'file:token', signing_secret: 'file:{}', base_url: '{base}', \
         direct: open, groups: {{'*': {{require_mention: false}}}}}}}}}}\n",
        secret.display()
    );

    // Enough conversations that a process is killed in the middle of them, with threads.
    let since = UnixMillis(SystemClock.now().0 - 10 * DAY_MS);
    api.conversations.set_page(10);
    let mut expected = BTreeSet::new();
    for conversation in 0..60 {
        let channel = format!("C{conversation:03}");
        let first = stamp(0, since.plus(DAY_MS));
        for number in 0..25_usize {
            let ts = stamp(number, since.plus(DAY_MS));
            api.conversations.add(&channel, &message(&ts, &json!({})));
            expected.insert(format!("slack:main/{channel}/{ts}"));
        }
        for number in 0..12_usize {
            let ts = stamp(number, since.plus(2 * DAY_MS));
            api.conversations
                .add(&channel, &message(&ts, &json!({"thread_ts": first})));
            expected.insert(format!("slack:main/{channel}/{ts}"));
        }
    }

    let start = |name: &str| start_service(&nats, &channels, "xoxb-main-secret", &folder, name);
    let mut process = start("adapter-svc-0");
    eventually("the order is taken", async || {
        ask::<BackfillJob>(&asking, "start", &order("slack", since))
            .await
            .is_ok()
    })
    .await;
    for round in 0..3 {
        let next = start(&format!("adapter-svc-{}", round + 1));
        // Killed after it has asked for pages, or while their events are stored.
        let (pages, count) = (api.conversations.pages(), stored(&bus).await.len());
        eventually("it is at work", async || match round % 2 {
            0 => stored(&bus).await.len() > count + 20,
            _ => api.conversations.pages() > pages + 5,
        })
        .await;
        process.kill();
        process = next;
    }

    let job = ended(&asking, "slack").await;
    assert_eq!(
        (job.state, job.found, job.finished),
        (BackfillState::Done, Some(60), 60),
        "{job:?}"
    );
    assert_eq!(job.read_by.as_deref(), Some("adapter-svc-3"));
    let ids = stored(&bus).await;
    assert_eq!(ids.len(), expected.len(), "each once");
    assert_eq!(ids.into_iter().collect::<BTreeSet<_>>(), expected);
    drop(process);
}
